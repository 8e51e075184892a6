// What the launcher says of ranks that failed.
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include <tests/support/error_of.hpp>
#include <tests/support/ranks.hpp>
#include <zero/distributed/launch.hpp>

namespace zero::dist {
namespace {

using ::testing::MatchesRegex;
using testing::ranks_ended;

class FailedRanks : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, FailedRanks, ::testing::Values(2, 3));

// In place of some thirty lines of calls.
TEST_P(FailedRanks, SayInOneLineWhatLibTorchThrew) {
  const auto exits = ranks_ended({.world_size = GetParam()}, [](Communicator&) {
    at::ones({2, 3}).view({7});
  });
  for (const RankExit& exit : exits) {
    EXPECT_EQ(exit.output, "rank " + std::to_string(exit.rank) +
                               ": shape '[7]' is invalid for input of size 6\n");
  }
}

TEST_P(FailedRanks, AreListedInLinesOfTheirOwn) {
  const auto exits = ranks_ended({.world_size = GetParam()}, [](Communicator& c) {
    std::fputs("in the middle of a line", stdout);
    if (c.rank() == 1) std::fputs("\n", stdout);
    std::fflush(stdout);
    std::_Exit(3);
  });
  const std::string line =
      "rank [0-9] ended with exit code 3 after [0-9.]+ s\n"
      "in the middle of a line";
  std::string all = line;
  for (int r = 1; r < GetParam(); ++r) all += "\n" + line;
  EXPECT_THAT(testing::error_of([&] { check_all_well(exits); }), MatchesRegex(all));
  EXPECT_THAT(testing::error_of([&] { check_all_well(exits, "training failed"); }),
              MatchesRegex("training failed:\n" + all));
}

TEST(WellRanks, NothingIsSaidWhereAllAreWell) {
  EXPECT_EQ(testing::error_of(
                [] { check_all_well(ranks_ended({}, [](Communicator&) {}), "training failed"); }),
            "");
}

}  // namespace
}  // namespace zero::dist
