#include "grading.hpp"

#undef launch_ranks
#undef snapshot

#include <cstdio>
#include <optional>

#include <zero/base/error.hpp>

#include "judge.hpp"
#include "rank_log.hpp"
#include "reference.hpp"

namespace zero::exercise {
namespace {

// Runs `function` on `ranks` ranks and records each. A collective that ranks disagree about is an
// error that names both sides, and none waits longer than 5 s.
std::vector<dist::RankExit> run(dist::LaunchOptions options, int ranks,
                                const dist::RankFunction& function) {
  options.world_size = ranks;
  options.capture_output = true;
  options.threads = 1;
  options.connect.check_collectives = true;
  options.connect.timeout = std::chrono::seconds(5);
  options.total_timeout = std::chrono::seconds(20);
  return dist::launch_ranks(options, [&](dist::Communicator& communicator) {
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
  dist::check_all_well(exits, "the grader's own DDP failed");
  return logs_of(exits);
}

// The first mistake at `ranks` ranks, if there is one. `output` becomes what the ranks printed.
std::optional<std::string> judge_at(int chapter, const dist::LaunchOptions& options, int ranks,
                                    const dist::RankFunction& function, std::string& output) {
  const auto exits = run(options, ranks, function);
  output = printed_by(exits);
  if (auto mistake = judge_exits(exits)) return mistake;
  const References references = {run_reference(options, ranks, train_ddp), [&] {
                                   return run_reference(options, ranks, train_ddp_with_sums);
                                 }};
  return judge_run(chapter, logs_of(exits), references);
}

int grade(const std::string& exercise, const dist::LaunchOptions& options,
          const dist::RankFunction& function) {
  for (const int ranks : {2, 3, 4, 1}) {  // most mistakes need two
    std::string output;
    const auto mistake = judge_at(exercise[1] - '0', options, ranks, function, output);
    if (!mistake) continue;
    if (!output.empty()) fmt::print("What the ranks printed:\n{}\n", output);
    fmt::print("{}, {} rank{}: {}{}\n", exercise, ranks, ranks == 1 ? "" : "s", *mistake,
               mistake->back() == '?' ? "" : ".");
    return 1;
  }
  fmt::print(
      "{} is right: bytes held, bytes sent and weights are as they must be at 1, 2, 3 and 4 "
      "ranks.\n",
      exercise);
  return 0;
}

}  // namespace
}  // namespace zero::exercise

namespace zero::dist {

std::vector<RankExit> graded_launch_ranks(const std::string& exercise, const LaunchOptions& options,
                                          const RankFunction& function) {
  int code = 2;
  try {
    code = exercise::grade(exercise, options, function);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}: {}\n", exercise, message_of(error));
  }
  std::exit(code);
}

}  // namespace zero::dist

namespace zero::memory {

Snapshot graded_snapshot() { return exercise::record_step(); }

}  // namespace zero::memory
