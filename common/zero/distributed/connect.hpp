#pragma once

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>

#include <zero/distributed/communicator.hpp>
#include <zero/distributed/environment.hpp>

namespace zero::dist {

/// How ranks find each other and behave towards each other.
struct ConnectOptions {
  /// Longest wait for a peer, at start-up and in every collective. No operation waits for ever.
  std::chrono::milliseconds timeout = std::chrono::minutes(5);
  ReductionOrder order = ReductionOrder::kRankOrdered;
  /// Compare operation, shape, dtype, purpose and root over all ranks before every collective:
  /// slow, and a mismatch is an error that names both sides instead of a hang. For debugging and
  /// tests.
  bool check_collectives = false;
  /// "gloo" (CPU tensors) or "nccl" (CUDA tensors, where the build has it).
  std::string backend = "gloo";
  /// How CPU tensors travel. "auto": copied straight out of the peer's memory where all ranks are
  /// on one host and the system allows it (Linux, process_vm_readv), else through shared memory
  /// (memfd_create), else over TCP; "host": the first or zero::Error; "shared": the second or
  /// zero::Error; "tcp": always over TCP. The same bits in any way. The environment variable
  /// ZERO_TRANSPORT goes before this.
  ///
  /// With "auto" and "host", where Linux lets only ancestors of a process read its memory (Yama,
  /// ptrace_scope 1), every rank allows it, until the communicator is gone, to all processes of the
  /// same user that descend from the ranks' nearest common ancestor, most often their launcher.
  /// "shared" and "tcp" do without.
  std::string transport = "auto";
  /// Use loopback: all ranks are on this machine. The variable GLOO_SOCKET_IFNAME goes before this.
  bool loopback = false;
  /// Goes before every key in the store: groups that share a store need different ones.
  std::string prefix = "zero";
};

/// Connects this rank to the others through the TCP store at master_address:master_port, which rank
/// 0 serves unless the launcher does. Called by all ranks; blocks until all are there; zero::Error
/// that names the missing ranks after the time limit, or the port if it is taken. Ignores SIGPIPE
/// from then on, unless the program handles it: a lost peer is to be an error, not the end.
std::unique_ptr<Communicator> connect(const RankEnvironment& environment,
                                      const ConnectOptions& options = {});

/// Connects `size` processes of this machine through a folder that all of them see and that was
/// empty before, as launch_ranks() does. Otherwise as connect().
std::unique_ptr<Communicator> connect_in_folder(const std::filesystem::path& folder, int rank,
                                                int size, ConnectOptions options = {});

/// A group of one: no store, no connection, nothing to wait for.
std::unique_ptr<Communicator> connect_alone(const ConnectOptions& options = {});

}  // namespace zero::dist
