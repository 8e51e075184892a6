// The planner's formulas beside the strategies' own: what the ranks hold and send, in the mean.
#include <gtest/gtest.h>

#include <tests/support/ranks.hpp>
#include <tools/plan/model.hpp>
#include <tools/plan/traffic.hpp>
#include <zero/distributed/fake/fake_communicator.hpp>
#include <zero/nn/llama.hpp>
#include <zero/optim/adamw.hpp>
#include <zero/train/registry.hpp>

namespace zero::testing {
namespace {

struct Mode {
  const char* name;
  plan::Stage stage;
  plan::Scheme scheme;
};

// Means over `ranks` ranks, in bytes: model states, and what is sent in a step.
std::pair<double, double> by_strategy(const char* mode, int ranks, nn::ParameterSource& values) {
  train::Registry registry;
  train::register_all_chapters(registry);
  double held = 0, sent = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    std::shared_ptr<nn::Llama> model;
    {
      const nn::DeferredStorage deferred;
      model = std::make_shared<nn::Llama>(nn::preset("tiny"));
    }
    dist::FakeCommunicator communicator(rank, ranks);
    const auto strategy = registry.make(mode, {*model, communicator, optim::adamw(), &values});
    held += static_cast<double>(strategy->predicted_bytes().total()) / ranks;
    sent += static_cast<double>(strategy->predicted_traffic()) / ranks;
  }
  return {held, sent};
}

TEST(PlannerFormulas, AreThoseOfTheStrategies) {
  on_ranks(1, [](dist::Communicator&) {
    using plan::Scheme, plan::Stage;
    nn::SeededValues values(1);
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
        const auto [held, sent] = by_strategy(mode.name, n, values);
        const double planned = parameters * plan::bytes_per_parameter(plan::fp32(), mode.stage, n);
        EXPECT_NEAR(held / planned, 1, 1e-9);
        const plan::Copies copies = plan::copies(model.parameters, plan::fp32());
        EXPECT_NEAR(sent, plan::sent(mode.scheme, copies, n, kept).total(), 1e-6 * parameters);
      }
    }
  });
}

}  // namespace
}  // namespace zero::testing
