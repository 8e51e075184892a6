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

/// The repository's small DDP program at the same number of ranks; for chapter 09 with a rank for
/// each micro-batch. For chapter 06 its own program, which has the bits of a DDP that adds as its
/// groups do.
struct References {
  Run ddp;
  // Run if needed: the same with sums in place of averages, and with the gradient of the last rank
  // in place of the sum.
  std::function<Run()> ddp_with_sums;
  std::function<Run()> ddp_with_last;
};

/// Each judge function returns the first error that it finds and its likely cause, in one line, or
/// nothing. `chapter` (0 to 6, or 9) says which program the learner writes.

/// Crashes, errors and time limits. `chapter`: 0 also for an answer that is not a small program.
std::optional<std::string> judge_exits(const std::vector<dist::RankExit>& exits, int chapter = 0);

/// What the program itself printed on its ranks, without the errors that ended them.
std::string printed_by(const std::vector<dist::RankExit>& exits);

/// What the ranks held, sent and computed. The order of checks: all steps are there; the order of
/// chapter 05's collectives; all ranks have batches of their own and the same weights; bytes at
/// rest; bytes at the peak; bytes sent; the weights are those of DDP. `by_autograd`: autograd makes
/// a layer's gradient while its weight is there, so the peak of both together is known, too.
std::optional<std::string> judge_run(int chapter, const Run& run, const References& references,
                                     bool by_autograd = false);

/// The same for the stages of chapter 09, step by step: the stage computes with the weights of DDP,
/// runs forward and backward of micro-batches in the order of 1F1B, and holds and sends what it
/// must.
std::optional<std::string> judge_pipeline(const Run& run, const References& references);

/// The order of chapter 05's collectives on one rank: each gather starts before the computation
/// that hides it, and each reduction is waited for after backward and before its update.
std::optional<std::string> judge_order(int rank, int ranks, const RankLog& log);

// What the judges share.

/// "3,640 bytes too many" or "3,640 bytes of gradients too few", for a difference other than 0.
std::string too_many(std::int64_t difference, const std::string& of_what = "");

/// The first weight with which a rank computes a layer's forward in a step; null if it does not.
const Event* forward_of(const RankLog& log, int step, int layer);

/// Whether a rank has all steps, computes layers [first, end) in each, and prints a digest.
std::optional<std::string> judge_completeness(const RankLog& log, int rank, int first, int end);

}  // namespace zero::exercise
