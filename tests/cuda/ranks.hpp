#pragma once

#include <chrono>

#include <tests/support/in_process.hpp>
#include <tests/support/ranks.hpp>
#include <zero/distributed/launch.hpp>
#include <zero/distributed/nccl/nccl.hpp>

/// Helpers of the tests of ranks on GPUs; nothing else includes this.
namespace zero::dist::testing {

/// Ranks over NCCL, whose output is kept. One rank, which has no order, calls NCCL too.
inline LaunchOptions on_nccl(int world_size, ReductionOrder order) {
  const bool alone = world_size == 1;
  enable_nccl(
      {.device = {}, .order = alone ? ReductionOrder::kNative : order, .works_alone = alone});
  LaunchOptions options = zero::testing::captured(world_size, std::chrono::seconds(110));
  options.connect.backend = "nccl";
  options.connect.timeout = std::chrono::seconds(60);
  return options;
}

/// The test process must not start CUDA before it forks.
using zero::testing::run_in_process;

}  // namespace zero::dist::testing
