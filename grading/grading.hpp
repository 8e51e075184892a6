#pragma once

/// Stands before a learner's program, which stays a plain program: CMake includes this file and
/// then the learner's, with ZERO_EXERCISE set to "01b" or another step. The program's calls of
/// launch_ranks() and snapshot() then reach the grader. The headers of the programs come first, so
/// that the names below replace nothing in them; CMake adds those of autograd for the programs that
/// need them, because they take half a second at each save.

#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <zero/distributed/launch.hpp>
#include <zero/memory/accounting.hpp>

namespace zero::dist {

/// Runs the function of a program at 1, 2, 3 and 4 ranks, in chapter 06 also at 6 and in chapter 09
/// at 8, prints in one line whether it is right or what is wrong first, and ends the process: with
/// exit code 0 if it is right, else 1.
[[noreturn]] std::vector<RankExit> graded_launch_ranks(const std::string& exercise,
                                                       const LaunchOptions& options,
                                                       const RankFunction& function);

}  // namespace zero::dist

namespace zero::memory {

/// memory::snapshot(), at the end of a step.
Snapshot graded_snapshot();

}  // namespace zero::memory

#define launch_ranks(...) graded_launch_ranks(ZERO_EXERCISE, __VA_ARGS__)
#define snapshot graded_snapshot
