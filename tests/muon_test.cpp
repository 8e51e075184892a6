// Muon under every strategy: the bits of plain DDP where parameters stay whole, an error on all
// ranks where they are cut.

#include <tests/support/engine_run.hpp>
#include <tests/support/optimizers.hpp>
#include <tests/support/session.hpp>
#include <tests/support/two_bytes.hpp>

namespace zero::testing {
namespace {

bool keeps_whole(const std::string& mode) {
  const auto is = [&](const char* name) { return mode.starts_with(name); };
  return is("ddp") || is("hddp") || is("zero") || is("engine0");
}

SessionOptions with_muon(at::ScalarType dtype) {
  SessionOptions options = dtype == at::kFloat ? with_parts("anfl") : mixed(dtype);
  options.optimizer = muon_of({.learning_rate = 0.01});
  if (dtype != at::kFloat) options.optimizer = optim::with_master_weights(options.optimizer);
  return options;
}

ZERO_TESTS_ON_RANKS(MuonOnRanks, 2, 3);

TEST_P(MuonOnRanks, HasTheBitsOfDdpWhereParametersStayWhole) {
  on_ranks(GetParam(), [](dist::Communicator& communicator) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      const auto trained = [&](const std::string& mode, int steps) {
        Session session(communicator, mode, with_muon(dtype));
        for (int step = 0; step < steps; ++step) session.step(step);
        return session.weights();
      };
      const std::vector<at::Tensor> expected = trained("ddp", 3);
      EXPECT_FALSE(same_bits(expected, trained("ddp", 2)));
      for (const std::string& mode : all_modes()) {
        if (!keeps_whole(mode) || mode.starts_with("hddp")) continue;
        EXPECT_TRUE(same_bits(trained(mode, 3), expected)) << mode << " " << dtype;
      }
    }
  });
}

TEST_P(MuonOnRanks, IsRefusedOnAllRanksWhereParametersAreCut) {
  on_all_modes(GetParam(), [](dist::Communicator& communicator, const std::string& mode) {
    const std::string refusal =
        error_of([&] { Session(communicator, mode, with_muon(at::kFloat)); });
    const std::vector<std::string> all = communicator.exchange(refusal);
    EXPECT_THAT(all, ::testing::Each(refusal));
    if (keeps_whole(mode)) {
      EXPECT_EQ(refusal, "");
    } else {
      const std::string name = mode.substr(0, mode.find(':'));
      EXPECT_THAT(refusal,
                  ::testing::HasSubstr("Muon updates a parameter only as a whole, and " + name));
      EXPECT_THAT(refusal, ::testing::HasSubstr("take ddp, zero1, zero2 or zero3"));
    }
  });
}

TEST_P(MuonOnRanks, IsForStage0OfAnEngine) {
  on_all_stages(GetParam(), [](dist::Communicator& communicator, int stage) {
    const auto train = [&] { EngineRun(communicator, {.stage = stage}, muon_of({})).step(0); };
    if (stage == 0) return train();
    expect_error(train, {"Muon updates a parameter only as a whole",
                         fmt::format("engine{} cuts 'layers.0.linear.weight'", stage)});
  });
}

}  // namespace
}  // namespace zero::testing
