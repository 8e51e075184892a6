#pragma once

#include <optional>
#include <string>

namespace zero::dist {

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

}  // namespace zero::dist
