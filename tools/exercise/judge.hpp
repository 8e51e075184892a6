#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <zero/distributed/launch.hpp>

#include "rank_log.hpp"

/// Compares what a learner's program did with the formulas and with the repository's DDP.
namespace zero::exercise {

/// One run of a program: a log for each rank.
using Run = std::vector<RankLog>;

/// The repository's small DDP program at the same number of ranks.
struct References {
  Run ddp;
  std::function<Run()> ddp_with_sums;  ///< the same with sums in place of averages; run if needed
};

/// Each returns the first thing that is wrong, in one line with the mistake that it looks like, or
/// nothing. `chapter` (0 to 5) is the program that the learner is to write.

/// Crashes, errors and time limits.
std::optional<std::string> judge_exits(const std::vector<dist::RankExit>& exits);

/// What the program itself printed on its ranks, without the errors that ended them.
std::string printed_by(const std::vector<dist::RankExit>& exits);

/// What the ranks held, sent and computed. The order of checks: all steps are there; the order of
/// chapter 05's collectives; all ranks compute with the same weights; bytes at rest; bytes at the
/// peak; bytes sent; the weights are those of DDP.
std::optional<std::string> judge_run(int chapter, const Run& run, const References& references);

/// The order of chapter 05's collectives on one rank: a gather starts before the layer computes
/// that it hides behind, and reductions are waited for after backward, before their update.
std::optional<std::string> judge_order(int rank, int ranks, const RankLog& log);

}  // namespace zero::exercise
