// Training on the emulated accelerator has the bits of training on the CPU, and the checker finds
// nothing: every mode of all chapters, and the engine with a plain module.

#include <ATen/ops/mse_loss.h>
#include <ATen/ops/randn.h>
#include <fmt/format.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <tests/support/accelerator/emulated_test.hpp>
#include <tests/support/parity.hpp>
#include <zero/engine.hpp>

namespace zero::testing {
namespace {

std::vector<std::string> every_mode() {
  tools::Registry registry;
  tools::register_all_chapters(registry);
  return registry.modes();
}

void expect_the_bits_of_the_cpu(int ranks, const std::vector<std::string>& modes,
                                RunOptions options) {
  emulated::on_emulated_ranks({.world_size = ranks}, [&](dist::Communicator& communicator) {
    for (const std::string& mode : modes) {
      SCOPED_TRACE(mode);
      options.device = at::kCPU;
      const RunRecord on_cpu = run_edge_case_model(communicator, mode, options);
      options.device = emulated::kDevice;
      expect_identical(run_edge_case_model(communicator, mode, options), on_cpu);
      emulated::expect_clean();
    }
  });
}

ZERO_TESTS_ON_RANKS(EmulatedParity, 1, 2, 3);

TEST_P(EmulatedParity, EveryMode) {
  expect_the_bits_of_the_cpu(GetParam(), every_mode(), {.steps = 3});
}

TEST_P(EmulatedParity, EveryModeWithMicroBatches) {
  expect_the_bits_of_the_cpu(
      GetParam(), every_mode(),
      {.steps = 2, .micro_batches = 2, .accumulation = train::Accumulation::kReduceEach});
}

TEST(EmulatedGroups, OfTwoRanksHaveTheBitsOfTheCpu) {
  expect_the_bits_of_the_cpu(
      4,
      {"hddp:shard_size=2", "hsdp1:shard_size=2", "hsdp2:shard_size=2", "hsdp3:shard_size=2",
       "hpz:group_size=2", "qgz:group_size=2", "zeropp:group_size=2"},
      {.steps = 3});
}

std::vector<at::Tensor> trained_plain_module(dist::Communicator& communicator, int stage,
                                             at::Device device) {
  at::manual_seed(7);
  torch::nn::Sequential net(torch::nn::Linear(5, 13),
                            torch::nn::LayerNorm(torch::nn::LayerNormOptions({13})),
                            torch::nn::Linear(13, 11), torch::nn::Linear(11, 3));
  net->to(device);
  Engine engine(*net, communicator, optim::adamw({.learning_rate = 0.01}), {.stage = stage},
                nn::default_units(/*bytes=*/1));
  for (int step = 0; step < 3; ++step) {
    at::manual_seed(static_cast<std::uint64_t>(100 * step + communicator.rank()));
    const at::Tensor x = at::randn({4, 5}).to(device), y = at::randn({4, 3}).to(device);
    engine.backward(engine.forward([&] { return at::mse_loss(net->forward(x).tanh(), y); }));
    EXPECT_TRUE(engine.step());
  }
  std::vector<at::Tensor> weights;
  for (const at::Tensor& t : whole_weights(engine.strategy())) weights.push_back(t.cpu());
  return weights;
}

TEST_P(EmulatedParity, EveryStageWithAPlainModule) {
  emulated::on_emulated_ranks({.world_size = GetParam()}, [](dist::Communicator& communicator) {
    for (const int stage : {0, 1, 2, 3}) {
      SCOPED_TRACE(stage);
      EXPECT_TRUE(same_bits(trained_plain_module(communicator, stage, emulated::kDevice),
                            trained_plain_module(communicator, stage, at::kCPU)));
      emulated::expect_clean();
    }
  });
}

}  // namespace
}  // namespace zero::testing
