// The engine with all parts of ZeRO++, chapter 07, which rounds what travels.
#include <tests/support/engine_run.hpp>
#include <tests/support/ranks.hpp>
#include <tests/support/same_bits.hpp>
#include <zero/distributed/agreement.hpp>
#include <zero/engine_config.hpp>

namespace zero::testing {
namespace {

constexpr const char* kEverything = R"({"group_size": 2, "secondary_shards": true,
                                         "quantize_parameters": true, "quantize_gradients": true})";

// Three batches over and over: the sums of their losses over all ranks, at first and in the end.
std::pair<double, double> losses_of_60_steps(dist::Communicator& communicator,
                                             const std::string& options) {
  EngineRun run(communicator, engine_config(options), optim::adamw({.learning_rate = 0.02}));
  std::vector<double> sums(2, 0);
  for (int s = 0; s < 60; ++s) {
    const at::Tensor loss = run.forward(s % 3);
    run.engine.backward(loss);
    run.engine.step();
    if (s < 3 || s >= 57) sums[s < 3 ? 0 : 1] += loss.item<double>();
  }
  std::pair<double, double> of_all_ranks;
  const std::vector<double> all = dist::all_gather_scalars(communicator, sums);
  for (std::size_t k = 0; k < all.size(); k += 2) {
    of_all_ranks.first += all[k];
    of_all_ranks.second += all[k + 1];
  }
  return of_all_ranks;
}

TEST(EngineWithZeroPlusPlus, TrainsCloseToStage3) {
  on_ranks(4, [](dist::Communicator& communicator) {
    const auto [first, plain] = losses_of_60_steps(communicator, "{}");
    const auto [other_first, found] = losses_of_60_steps(communicator, kEverything);
    EXPECT_LT(plain, 0.5 * first);
    EXPECT_NEAR(found, plain, 0.05 * first);
    EXPECT_NE(found, plain);
  });
}

TEST(EngineWithZeroPlusPlus, SkipsAStepThatOverflows) {
  on_ranks(4, [](dist::Communicator& communicator) {
    EngineConfig config = engine_config(kEverything);
    config.on_nonfinite_gradient = train::OnNonfiniteGradient::kSkip;
    EngineRun run(communicator, config);
    run.step(0);
    const auto before = run.weights();
    run.make_gradient_infinite(communicator.rank() == 3);
    EXPECT_FALSE(run.step(1));
    EXPECT_TRUE(same_bits(run.weights(), before));
    run.make_gradient_infinite(false);
    EXPECT_TRUE(run.step(2));
    EXPECT_FALSE(same_bits(run.weights(), before));
  });
}

}  // namespace
}  // namespace zero::testing
