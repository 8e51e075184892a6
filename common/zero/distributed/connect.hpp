#pragma once

#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include <zero/distributed/communicator.hpp>

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
  std::string transport = "auto";
  /// Use loopback: all ranks are on this machine. The variable GLOO_SOCKET_IFNAME goes before this.
  bool loopback = false;
  /// Goes before every key in the store: groups that share a store need different ones.
  std::string prefix = "zero";
};

/// Which rank this process is, as the launcher told it.
struct RankEnvironment {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;  ///< among the ranks of this machine
  int local_world_size = 1;
  std::string master_address = "127.0.0.1";
  int master_port = 29500;
  /// torchrun's agent already serves the store: every rank is a client, rank 0 too.
  bool store_is_served = false;
  /// How often the launcher has started all ranks again. Its store still holds what they said
  /// before.
  int restarts = 0;
  std::string launcher;  ///< "torchrun", "Open MPI", "Slurm" or "RANK/WORLD_SIZE"
};

/// Reads the variables of torchrun (RANK, WORLD_SIZE, …), Open MPI (OMPI_COMM_WORLD_RANK, …) or
/// Slurm (SLURM_PROCID, …), in this order. Nothing if none of them is set; zero::Error that names
/// the variable if some are missing or make no sense.
///
/// How many ranks are on this machine Slurm says for each node (SLURM_STEP_TASKS_PER_NODE, else
/// SLURM_TASKS_PER_NODE); it is this node's number, or the largest where SLURM_NODEID does not say
/// which node this is. With RANK and WORLD_SIZE and without LOCAL_WORLD_SIZE, it is all of them
/// where MASTER_ADDR is a loopback address or not set, and 1 elsewhere.
std::optional<RankEnvironment> rank_environment();

/// Whether only processes of this machine reach that address: "localhost", "::1", "127.…".
bool is_loopback(const std::string& address);

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
