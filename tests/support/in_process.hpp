#pragma once

#include <functional>
#include <string>

#include <zero/distributed/launch.hpp>

namespace zero::testing {

/// Runs `question` in a child process and returns its result, or how the process failed. For what
/// must not start in the test process, such as CUDA or autograd's threads: it could not fork after.
inline std::string run_in_process(const std::function<std::string()>& question) {
  const dist::LaunchOptions one{.world_size = 1, .capture_output = true};
  const auto exits = dist::fork_processes(one, [&](int) { return question(); });
  return exits[0].ok() ? exits[0].result : dist::describe_failures(exits);
}

}  // namespace zero::testing
