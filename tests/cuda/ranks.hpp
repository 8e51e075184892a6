#pragma once

#include <chrono>
#include <functional>
#include <string>

#include <tests/support/ranks.hpp>
#include <zero/distributed/launch.hpp>
#include <zero/distributed/nccl/nccl.hpp>

/// Helpers of the tests of ranks on GPUs; nothing else includes this.
namespace zero::dist::testing {

/// Ranks over NCCL, whose output is kept.
inline LaunchOptions on_nccl(int world_size, ReductionOrder order) {
  enable_nccl({.device = {}, .order = order});
  LaunchOptions options = zero::testing::captured(world_size, std::chrono::seconds(110));
  options.connect.backend = "nccl";
  options.connect.timeout = std::chrono::seconds(60);
  return options;
}

/// Runs `question` in a child process and returns its result. The test process must not start CUDA
/// before it forks.
inline std::string run_in_process(const std::function<std::string()>& question) {
  const LaunchOptions one{.world_size = 1, .capture_output = true};
  const auto exits = fork_processes(one, [&](int) { return question(); });
  return exits[0].ok() ? exits[0].result : describe_failures(exits);
}

}  // namespace zero::dist::testing
