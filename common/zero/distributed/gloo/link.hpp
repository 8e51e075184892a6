#pragma once

// Private to zero/distributed.

#include <chrono>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <zero/distributed/store/store_exchange.hpp>
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

  /// Between `hosts`, by rank of the world; null if ZERO_LINK is not set, or there is one host.
  /// Called by all ranks; blocks. Throws zero::Error on all of them if they differ in ZERO_LINK, or
  /// are on several machines.
  static std::shared_ptr<Link> open(StoreExchange& store, int rank, const std::vector<int>& hosts);

  // Ranks are those of the world.
  bool is_between(int rank, int other) const { return host(rank) != host(other); }
  /// When `bytes` that `from` sends now to `to`, on another host, will have arrived.
  Time send(int from, int to, std::int64_t bytes);

 private:
  Link(std::unique_ptr<memory::SharedArena> page, std::vector<int> hosts, double rate)
      : page_(std::move(page)), hosts_(std::move(hosts)), rate_(rate) {}
  int host(int rank) const { return hosts_[static_cast<std::size_t>(rank)]; }

  std::unique_ptr<memory::SharedArena> page_;  // for each host: its way out, its way in
  std::vector<int> hosts_;
  double rate_;  // bytes a second
};

}  // namespace zero::dist
