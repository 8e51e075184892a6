// Training on the emulated accelerator has the bits of training on the CPU, and the checker finds
// nothing: every mode of all chapters. (kept_on_host_test.cpp has a plain module.)

#include <torch/nn/modules/container/sequential.h>
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

}  // namespace
}  // namespace zero::testing
