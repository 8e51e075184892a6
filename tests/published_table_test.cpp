// The memory table that was published for SmolLM2-360M, fp32, AdamW, 2 ranks, by the formulas of
// the real strategies at the real size. Nothing is trained: parameters get storage and no values,
// so that their pages are never touched.
#include <fmt/format.h>

#include <tests/support/deferred.hpp>
#include <tests/support/modes.hpp>
#include <tests/support/states.hpp>
#include <tools/plan/model.hpp>
#include <tools/plan/traffic.hpp>
#include <zero/distributed/fake/fake_communicator.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/nn/llama.hpp>
#include <zero/optim/adamw.hpp>

namespace zero::testing {
namespace {

class NoValues final : public nn::ParameterSource {
 public:
  void fill(const nn::Parameter&, at::Tensor&) override {}
};

// Means over the ranks, in bytes.
struct Means {
  double parameters = 0;
  double gradients = 0;
  double optimizer = 0;
  double total = 0;
  double sent = 0;  // in a step
};

// By the formulas of `mode`. Also sees that a rank holds the parameters that its formula says.
Means means_of(const std::string& mode, const nn::LlamaConfig& config, int ranks) {
  Means mean;
  for (int rank = 0; rank < ranks; ++rank) {
    const memory::Snapshot before = memory::snapshot();
    const auto model = make_deferred<nn::Llama>(config);
    dist::FakeCommunicator communicator(rank, ranks);
    NoValues values;
    const auto strategy = make_strategy(mode, {*model, communicator, optim::adamw(), &values});
    const train::ModelStateBytes bytes = strategy->costs().at_rest;
    EXPECT_EQ(states_since(before).parameters, bytes.parameters);
    const auto add = [&](double& to, std::int64_t more) {
      to += static_cast<double>(more) / ranks;
    };
    add(mean.parameters, bytes.parameters);
    add(mean.gradients, bytes.gradients);
    add(mean.optimizer, bytes.optimizer);
    add(mean.total, bytes.total());
    add(mean.sent, strategy->costs().sent);
  }
  return mean;
}

constexpr double kMib = 1 << 20;

TEST(PublishedTable, ClassifierComesOutWithin0Point01Mib) {
  nn::LlamaConfig config = nn::preset("smollm2-360m");
  config.classes = 5;
  on_ranks(1, [&](dist::Communicator&) {
    for (const auto& [mode, published] : std::vector<std::pair<const char*, Means>>{
             {"ddp", {1380.26, 1380.26, 2760.51, 5521.03}},
             {"zero1", {1380.26, 1380.26, 1380.26, 4140.78}},
             {"zero2", {1380.26, 690.12, 1380.26, 3450.65}},
             {"zero3", {690.12, 690.12, 1380.26, 2760.51}}}) {
      SCOPED_TRACE(mode);
      const Means found = means_of(mode, config, 2);
      EXPECT_NEAR(found.parameters / kMib, published.parameters, 0.01);
      EXPECT_NEAR(found.gradients / kMib, published.gradients, 0.01);
      EXPECT_NEAR(found.optimizer / kMib, published.optimizer, 0.01);
      EXPECT_NEAR(found.total / kMib, published.total, 0.02);
    }
  });
}

// The planner's formulas beside the strategies' own.
TEST(PlannerFormulas, AreThoseOfTheStrategies) {
  on_ranks(1, [](dist::Communicator&) {
    using plan::Scheme, plan::Stage;
    struct Mode {
      const char* name;
      Stage stage;
      Scheme scheme;
    };
    const plan::Model model = plan::model_of(nn::preset("tiny"), "tiny");
    const auto parameters = static_cast<double>(model.parameters);
    const double kept = static_cast<double>(model.root) / parameters;
    for (const Mode& mode : {Mode{"ddp", Stage::kDdp, Scheme::kDdp},
                             {"zero1", Stage::kZero1, Scheme::kZero1},
                             {"zero1:naive", Stage::kZero1, Scheme::kZero1Naive},
                             {"zero2", Stage::kZero2, Scheme::kZero2},
                             {"zero2:placeholder", Stage::kZero2, Scheme::kZero2Placeholder},
                             {"zero3", Stage::kZero3, Scheme::kZero3},
                             {"zero3:whole", Stage::kZero3, Scheme::kZero3Kept}}) {
      for (const int n : {1, 2, 3, 8}) {
        SCOPED_TRACE(fmt::format("{}, {} ranks", mode.name, n));
        const Means found = means_of(mode.name, nn::preset("tiny"), n);
        const double planned = parameters * plan::bytes_per_parameter(plan::fp32(), mode.stage, n);
        EXPECT_NEAR(found.total / planned, 1, 1e-9);
        const plan::Copies copies = plan::copies(model.parameters, plan::fp32());
        EXPECT_NEAR(found.sent, plan::sent(mode.scheme, copies, n, kept).total(),
                    1e-6 * parameters);
      }
    }
  });
}

}  // namespace
}  // namespace zero::testing
