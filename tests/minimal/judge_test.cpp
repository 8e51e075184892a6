// What a grader says of ranks that ended with an error.
#include <gmock/gmock.h>

#include <grading/judge.hpp>

namespace zero::exercise {
namespace {

using ::testing::Optional;
using ::testing::StartsWith;

dist::RankExit failed(int rank, const std::string& error, double seconds) {
  dist::RankExit exit;
  exit.rank = rank;
  exit.exit_code = 1;
  exit.output = "rank " + std::to_string(rank) + ": " + error + "\n";
  exit.seconds = seconds;
  return exit;
}

const char* const kUndefined = "reduce: the tensor is undefined";
const char* const kGone = "reduce #0: the connection to rank 0 is gone; it ended";
const char* const kLate = "reduce #0: nothing from rank 0 within 5 s; it is stopped";

TEST(JudgeExits, NamesTheRankWithAnErrorOfItsOwnWhoeverEndsFirst) {
  for (const double seconds : {1., 2., 3.}) {
    EXPECT_THAT(
        judge_exits({failed(0, kUndefined, seconds), failed(1, kGone, 2), failed(2, kLate, 2)}),
        Optional(StartsWith("rank 0 uses a tensor that it does not hold")));
  }
}

TEST(JudgeExits, NamesTheRankThatWaitedBeforeThoseThatItLeft) {
  EXPECT_THAT(
      judge_exits({failed(0, kGone, 1), failed(1, kLate, 2)}),
      Optional(StartsWith("rank 1 waits in a collective in which not all ranks take part")));
}

TEST(JudgeExits, NamesTheFirstOfTwoErrors) {
  EXPECT_THAT(judge_exits({failed(0, "its loss is nan", 2), failed(1, kUndefined, 1)}),
              Optional(StartsWith("rank 1 uses a tensor")));
  EXPECT_EQ(judge_exits({{.exit_code = 0}}), std::nullopt);
}

}  // namespace
}  // namespace zero::exercise
