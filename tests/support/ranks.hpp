#pragma once

#include <gmock/gmock.h>

#include <functional>
#include <string>

#include <zero/distributed/launch.hpp>

namespace zero::testing {

struct RankOptions {
  int world_size = 2;
  std::chrono::milliseconds timeout = std::chrono::seconds(20);         ///< of a collective
  std::chrono::milliseconds total_timeout = std::chrono::seconds(100);  ///< of everything
  dist::ReductionOrder order = dist::ReductionOrder::kRankOrdered;
  std::string backend = "gloo";
};

/// Runs `body` on `world_size` ranks, each a process of its own, and fails the test that calls it
/// if a GoogleTest assertion fails on any rank, or a rank throws, crashes or does not end in time.
/// What such a rank printed is shown. Blocks until all have ended.
void on_ranks(const RankOptions& options, const std::function<void(dist::Communicator&)>& body);
void on_ranks(int world_size, const std::function<void(dist::Communicator&)>& body);

/// For tests about failure: the same, without judging; says how every rank ended.
std::vector<dist::RankExit> ranks_ended(const RankOptions& options,
                                        const std::function<void(dist::Communicator&)>& body);

/// For tests that start processes by themselves: one thread each, and what they print is kept.
inline dist::LaunchOptions captured(int world_size, std::chrono::milliseconds total_timeout) {
  return {.world_size = world_size,
          .total_timeout = total_timeout,
          .capture_output = true,
          .threads = 1};
}

/// Expects that each rank of `exits` ended by itself, with an error whose text `says` matches.
template <typename Matcher>
void expect_errors(const std::vector<dist::RankExit>& exits, const Matcher& says) {
  for (const dist::RankExit& exit : exits) {
    EXPECT_EQ(exit.exit_code, 1) << "rank " << exit.rank;
    EXPECT_FALSE(exit.killed) << "rank " << exit.rank;
    EXPECT_THAT(exit.output, says) << "rank " << exit.rank;
  }
}

/// Names a test after its number of ranks.
inline std::string name_of_ranks(const ::testing::TestParamInfo<int>& info) {
  return "N" + std::to_string(info.param);
}

/// A suite of TEST_P()s, each of which runs with every one of the numbers after the name as
/// GetParam(): its number of ranks.
#define ZERO_TESTS_ON_RANKS(Suite, ...)                                  \
  class Suite : public ::testing::TestWithParam<int> {};                 \
  INSTANTIATE_TEST_SUITE_P(Ranks, Suite, ::testing::Values(__VA_ARGS__), \
                           ::zero::testing::name_of_ranks)

}  // namespace zero::testing
