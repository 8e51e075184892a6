#pragma once

// Private to zero/distributed.

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include <zero/distributed/communicator.hpp>
#include <zero/memory/shared_arena.hpp>

namespace zero::dist {

/// ZERO_LINK: one machine stands for several hosts with slow links between them. Each host has a
/// way out and a way in, which its ranks share. Each way carries one message after the other, in
/// the order in which they are sent, at the rate of the link; headers take no time. A message has
/// arrived when both of its ways have carried it.
///
/// From when on each way is free stands in a page that rank 0 makes and the other ranks map. It has
/// no name, and goes with the last of them.
class Link {
 public:
  using Time = std::chrono::steady_clock::time_point;

  /// Between the hosts of `world`, from now on, if ZERO_LINK is set. Called by all ranks of it,
  /// once; blocks if there are several hosts. Throws zero::Error on all of them if they differ in
  /// ZERO_LINK, or are on several machines.
  void open(Communicator& world);

  // Ranks are those of the world.
  bool is_between(int rank, int other) const { return page_ && host(rank) != host(other); }
  /// When `bytes` that `from` sends now to `to`, on another host, will have arrived.
  Time send(int from, int to, std::int64_t bytes);

 private:
  int host(int rank) const { return hosts_[static_cast<std::size_t>(rank)]; }

  // For each host: its way out, its way in. Null: as fast as the network.
  std::unique_ptr<memory::SharedArena> page_;
  std::vector<int> hosts_;
  double rate_ = 0;  // bytes a second
};

}  // namespace zero::dist
