#pragma once

#include <gtest/gtest.h>

#include <functional>

#include <zero/distributed/launch.hpp>

namespace zero::testing {

struct RankOptions {
  int world_size = 2;
  std::chrono::milliseconds timeout = std::chrono::seconds(20);         ///< of a collective
  std::chrono::milliseconds total_timeout = std::chrono::seconds(100);  ///< of everything
  bool check_collectives = false;
  dist::ReductionOrder order = dist::ReductionOrder::kRankOrdered;
};

/// Runs `body` on `world_size` ranks, each a process of its own, and fails the test that calls it
/// if a GoogleTest assertion fails on any rank, or a rank throws, crashes or does not end in time.
/// What such a rank printed is shown. Blocks until all have ended.
void on_ranks(const RankOptions& options, const std::function<void(dist::Communicator&)>& body);
void on_ranks(int world_size, const std::function<void(dist::Communicator&)>& body);

/// For tests about failure: the same, without judging; says how every rank ended.
std::vector<dist::RankExit> ranks_ended(const RankOptions& options,
                                        const std::function<void(dist::Communicator&)>& body);

}  // namespace zero::testing
