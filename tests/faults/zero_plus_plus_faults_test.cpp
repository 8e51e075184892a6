// A rank of ZeRO++ that is killed in a phase that only ZeRO++ has: all others, of its own group and
// of the other one, end by themselves within the time limit, with an error that names an operation
// and a rank.

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <csignal>
#include <memory>
#include <utility>

#include <07_zero_plus_plus/finish_work.hpp>
#include <07_zero_plus_plus/zero_plus_plus.hpp>
#include <tests/support/ranks.hpp>
#include <tests/support/toy_run.hpp>

namespace zero::testing {
namespace {

using ::testing::ContainsRegex;

constexpr int kRanks = 4;  // two groups of two
constexpr int kVictim = 1;
constexpr int kSteps = 50;

// Called on every rank where a phase begins.
using Strike = std::function<void(const std::string& phase)>;

class StruckParameters final : public train::ParameterTransfer {
 public:
  StruckParameters(std::unique_ptr<train::ParameterTransfer> real, Strike strike)
      : real_(std::move(real)), strike_(std::move(strike)) {}
  dist::Work gather(const at::Tensor& full, const at::Tensor& shard) override {
    const char* const phase = real_->reads_shard() ? "new_weights" : "secondary_shards";
    strike_(phase);
    return finish_with(real_->gather(full, shard), [this] { strike_("dequantize"); });
  }
  bool reads_shard() const override { return real_->reads_shard(); }
  bool rounds() const override { return real_->rounds(); }
  std::int64_t held_bytes() const override { return real_->held_bytes(); }
  train::SentBytes sent(std::int64_t gathers) const override { return real_->sent(gathers); }

 private:
  std::unique_ptr<train::ParameterTransfer> real_;
  Strike strike_;
};

class StruckGradients final : public train::GradientTransfer {
 public:
  StruckGradients(std::unique_ptr<train::GradientTransfer> real, Strike strike)
      : real_(std::move(real)), strike_(std::move(strike)) {}
  dist::Work reduce(const at::Tensor& full, const at::Tensor& shard) override {
    strike_("inside_group");
    return real_->reduce(full, shard);
  }
  bool has_rest() const override { return real_->has_rest(); }
  dist::Work reduce_rest(const at::Tensor& shard) override {
    strike_("between_hops");
    dist::Work rest = real_->reduce_rest(shard);
    strike_("between_groups");
    return rest;
  }
  train::SentBytes sent() const override { return real_->sent(); }

 private:
  std::unique_ptr<train::GradientTransfer> real_;
  Strike strike_;
};

std::unique_ptr<ShardedDataParallel> make_struck(const train::StrategyArguments& arguments,
                                                 const ZeroPlusPlusOptions& options,
                                                 const Strike& strike) {
  const train::StrategyArguments groups = arguments.with_shards(options.group_size);
  const train::Transfers real = zero_plus_plus_transfers(groups.mesh, options);
  train::Transfers struck = real;
  struck.parameters = [strike, real](const train::FlatBuffer& buffer) {
    return std::make_unique<StruckParameters>(real.parameters(buffer), strike);
  };
  struck.gradients = [strike, real](const train::FlatBuffer& buffer) {
    return std::make_unique<StruckGradients>(real.gradients(buffer), strike);
  };
  return std::make_unique<ShardedDataParallel>(groups, ShardingOptions{}, struck);
}

class ZeroPlusPlusFault : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Phases, ZeroPlusPlusFault,
                         ::testing::Values("new_weights", "secondary_shards", "dequantize",
                                           "inside_group", "between_hops", "between_groups"),
                         [](const auto& info) { return info.param; });

TEST_P(ZeroPlusPlusFault, ARankIsKilled) {
  dist::LaunchOptions options = captured(kRanks, std::chrono::seconds(60));
  options.connect.timeout = std::chrono::seconds(2);
  options.grace = std::chrono::milliseconds(500);
  const auto exits = dist::launch_ranks(options, [&](dist::Communicator& communicator) {
    int step = 0;
    const Strike strike = [&](const std::string& phase) {
      if (phase == GetParam() && step == 1 && communicator.rank() == kVictim) ::raise(SIGKILL);
    };
    const ZeroPlusPlusOptions parts{.group_size = 2,
                                    .secondary_shards = true,
                                    .quantize_parameters = true,
                                    .quantize_gradients = true};
    ToyRun<ShardedDataParallel> run(
        communicator, [&](const auto& arguments) { return make_struck(arguments, parts, strike); });
    for (; step < kSteps; ++step) run.step(step);
    return std::string();
  });
  EXPECT_EQ(exits[kVictim].signal, SIGKILL);
  EXPECT_FALSE(exits[kVictim].killed) << "the launcher did it, not the test";
  for (const dist::RankExit& exit : exits) {
    if (exit.rank == kVictim) continue;
    EXPECT_EQ(exit.exit_code, 1) << exit.output;
    EXPECT_FALSE(exit.killed) << "did not end by itself: " << exit.output;
    EXPECT_THAT(exit.output,
                ContainsRegex(fmt::format("rank {}: [a-z_]+ #[0-9]+ \\([a-z]+, [0-9]+ bytes\\) in "
                                          "Trainer::step in step [0-9]+: .*rank [0-9]",
                                          exit.rank)));
  }
}

}  // namespace
}  // namespace zero::testing
