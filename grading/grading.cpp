#include "grading.hpp"

#undef launch_ranks
#undef snapshot

#include <cstdio>
#include <optional>

#include "check.hpp"
#include "judge.hpp"
#include "rank_log.hpp"
#include "reference.hpp"
#include "small_formulas.hpp"

namespace zero::exercise {
namespace {

// Runs `function` on `ranks` ranks and records each.
std::vector<dist::RankExit> run(const dist::LaunchOptions& options, int ranks,
                                const dist::RankFunction& function) {
  return dist::launch_ranks(checked(options, ranks), [&](dist::Communicator& communicator) {
    return to_text(record(communicator, function));
  });
}

Run logs_of(const std::vector<dist::RankExit>& exits) {
  Run logs;
  for (const dist::RankExit& exit : exits) logs.push_back(log_from_text(exit.result));
  return logs;
}

Run run_reference(const dist::LaunchOptions& options, int ranks,
                  const dist::RankFunction& function) {
  const auto exits = run(options, ranks, function);
  dist::check_all_well(exits, "the grader's own program failed");
  return logs_of(exits);
}

int chapter_of(const std::string& exercise) { return exercise[1] - '0'; }

// The first mistake at `ranks` ranks, if there is one. `output` becomes what the ranks printed.
std::optional<std::string> judge_at(const std::string& exercise, const dist::LaunchOptions& options,
                                    int ranks, const dist::RankFunction& function,
                                    std::string& output) {
  const int chapter = chapter_of(exercise);
  const auto exits = run(options, ranks, function);
  output = printed_by(exits);
  if (auto mistake = judge_exits(exits, chapter)) return mistake;
  const bool in_groups = chapter == 6;  // it adds in another order
  const auto reference = [&](const dist::RankFunction& train) {
    return run_reference(options, chapter == 9 ? kMicroBatches : ranks, train);
  };
  const References references = {
      reference(in_groups ? train_hsdp : train_ddp),
      [&] { return reference(in_groups ? train_hsdp_with_sums : train_ddp_with_sums); },
      [&] { return reference(train_ddp_with_last); }};
  return chapter == 9 ? judge_pipeline(logs_of(exits), references)
                      : judge_run(chapter, logs_of(exits), references,
                                  /*by_autograd=*/exercise == "02d" || exercise == "03f");
}

// Most mistakes need two ranks, those of chapter 06 two groups of two. In chapter 09 the last
// number is more than there are micro-batches.
std::vector<int> numbers_of_ranks(int chapter) {
  return chapter == 6   ? std::vector{4, 3, 6, 2, 1}
         : chapter == 9 ? std::vector{2, 3, 4, 1, 8}
                        : std::vector{2, 3, 4, 1};
}

void check_program(const std::string& exercise, const dist::LaunchOptions& options,
                   const dist::RankFunction& function) {
  const int chapter = chapter_of(exercise);
  for (const int ranks : numbers_of_ranks(chapter)) {
    std::string output;
    const auto mistake = judge_at(exercise, options, ranks, function, output);
    if (!mistake) continue;
    if (!output.empty()) fmt::print("What the ranks printed:\n{}\n", output);
    throw Mistake(*mistake, ranks);
  }
}

}  // namespace
}  // namespace zero::exercise

namespace zero::dist {

std::vector<RankExit> graded_launch_ranks(const std::string& exercise, const LaunchOptions& options,
                                          const RankFunction& function) {
  const auto check = [&] { exercise::check_program(exercise, options, function); };
  const int chapter = exercise::chapter_of(exercise);
  const char* const ranks = chapter == 6 ? "3, 4 and 6" : chapter == 9 ? "3, 4 and 8" : "3 and 4";
  std::exit(exercise::grade(
      exercise, check,
      fmt::format("{}bytes held, bytes sent and weights are as they must be at 1, 2, {} ranks",
                  chapter == 9 ? "the order, " : "", ranks)));
}

}  // namespace zero::dist

namespace zero::memory {

Snapshot graded_snapshot() { return exercise::record_step(); }

}  // namespace zero::memory
