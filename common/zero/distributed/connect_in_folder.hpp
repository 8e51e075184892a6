#pragma once

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>

#include <zero/distributed/communicator.hpp>

namespace zero::dist {

/// How ranks find each other and behave towards each other.
struct ConnectOptions {
  /// Longest wait for a peer, at start-up and in every collective. No operation waits forever.
  /// Ranks that a launcher has started again wait twice as long for each other at start-up: another
  /// host's ranks may need this time to notice why. The environment variable ZERO_TIMEOUT, in whole
  /// seconds, overrides this.
  std::chrono::milliseconds timeout = std::chrono::minutes(5);
  ReductionOrder order = ReductionOrder::kRankOrdered;
  /// "gloo" (CPU tensors) or "nccl" (CUDA tensors too, where the build has it).
  std::string backend = "gloo";
  /// How CPU tensors travel. "auto": the ranks of a group that are all on one host (Linux, of one
  /// user, with one numbering of processes) read each other's memory, from which the large blocks
  /// of the process are then allocated (memory::SharedArena); all others use TCP, from each rank to
  /// each, also to those of its own host. "host" requires the first, else zero::Error; "tcp" always
  /// uses TCP. The bits are the same in every case. The environment variable ZERO_TRANSPORT
  /// overrides this.
  std::string transport = "auto";
  /// Use loopback: all ranks are on this machine. The variable GLOO_SOCKET_IFNAME overrides this.
  bool loopback = false;
  /// Prefix of every key in the store: groups that share a store need different ones.
  std::string prefix = "zero";
};

/// Connects `size` processes of this machine through a folder that all of them see and that was
/// empty before, as launch_ranks() does. Otherwise the same as connect().
std::unique_ptr<Communicator> connect_in_folder(const std::filesystem::path& folder, int rank,
                                                int size, ConnectOptions options = {});

/// A group of one rank: no store, no connection, nothing to wait for.
std::unique_ptr<Communicator> connect_alone(const ConnectOptions& options = {});

}  // namespace zero::dist
