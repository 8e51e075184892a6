// The average of bfloat16 weights is that of their float32 master weights, and showing it, rounded,
// leaves those as they are.

#include <gtest/gtest.h>

#include <tests/support/engine_run.hpp>
#include <tests/support/modes.hpp>
#include <tests/support/same_bits.hpp>
#include <zero/optim/master_weights.hpp>
#include <zero/optim/weight_average.hpp>

namespace zero::testing {
namespace {

ZERO_TESTS_ON_RANKS(AveragedMasterWeights, 1, 2, 3);

optim::OptimizerFactory with_masters() {
  return optim::with_master_weights(optim::adamw({.learning_rate = 1e-3}));
}

// What this rank has of a state, by parameter; undefined for others.
std::vector<at::Tensor> states(Engine& engine, const std::string& name) {
  train::Strategy& strategy = engine.strategy();
  std::vector<at::Tensor> all(strategy.list().size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    const at::Tensor mine = strategy.piece(i).tensor;
    if (!mine.defined()) continue;
    const auto of_piece = strategy.optimizer().state(mine);
    if (const auto found = of_piece.find(name); found != of_piece.end()) all[i] = found->second;
  }
  return all;
}

TEST_P(AveragedMasterWeights, AreThoseOfALoopAndStayWhileTheAverageIsShown) {
  on_all_stages(GetParam(), [](dist::Communicator& communicator, int stage) {
    const EngineConfig config{.overlap = {.stage = stage}};
    EngineRun run(communicator, config, optim::with_weight_average(with_masters(), 0.9),
                  at::kBFloat16);
    EngineRun without(communicator, config, with_masters(), at::kBFloat16);
    std::vector<at::Tensor> expected;
    for (std::size_t i = 0; i < run.engine.strategy().list().size(); ++i) {
      const train::ParameterShard mine = run.engine.strategy().piece(i);
      expected.push_back(mine.tensor.defined() ? mine.tensor.detach().flatten().to(at::kFloat)
                                               : at::Tensor());
    }
    for (int number = 0; number < 4; ++number) {
      run.step(number);
      without.step(number);
      const std::vector<at::Tensor> masters = states(run.engine, "master");
      for (std::size_t i = 0; i < masters.size(); ++i) {
        if (masters[i].defined()) expected[i].add_(masters[i].sub(expected[i]).mul_(1 - 0.9));
      }
      EXPECT_TRUE(same_bits(states(run.engine, "average"), expected));
      run.engine.with_averaged_weights([&] {
        for (const at::Tensor& whole : run.weights()) EXPECT_EQ(whole.scalar_type(), at::kBFloat16);
      });
      EXPECT_TRUE(same_bits(states(run.engine, "master"), states(without.engine, "master")));
      EXPECT_TRUE(same_bits(run.weights(), without.weights()));
    }
  });
}

}  // namespace
}  // namespace zero::testing
