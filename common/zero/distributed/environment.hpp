#pragma once

#include <chrono>
#include <optional>
#include <string>

namespace zero::dist {

/// The rank of this process, as told by the launcher.
struct RankEnvironment {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;  ///< among the ranks of this machine
  int local_world_size = 1;
  std::string master_address = "127.0.0.1";
  int master_port = 29500;
  /// True if torchrun's agent serves the store: every rank is a client, rank 0 too.
  bool store_is_served = false;
  /// How often the launcher has restarted all ranks. Its store still holds the keys of earlier
  /// starts.
  int restarts = 0;
  std::string launcher;  ///< "torchrun", "Open MPI", "MVAPICH", "MPICH or Intel MPI", "Slurm"
  std::string said_by;   ///< the variables with rank and world_size: "RANK and WORLD_SIZE"
};

/// Reads the variables of torchrun (RANK, WORLD_SIZE, …), Open MPI (OMPI_COMM_WORLD_RANK, …),
/// MVAPICH (MV2_COMM_WORLD_RANK, …), MPICH and Intel MPI (PMI_RANK, …) or Slurm (SLURM_PROCID, …),
/// in this order; if there are those of several, a line on rank 0 says which count. Returns nothing
/// if none of them is set; throws zero::Error that names the variable if some are missing or
/// invalid, or if there is PMIX_RANK alone.
///
/// Slurm, and who sets RANK and WORLD_SIZE by hand, names no number of ranks on this machine: it is
/// the world size if MASTER_ADDR is a loopback address or not set, else 1.
std::optional<RankEnvironment> rank_environment();

/// The environment variable ZERO_TIMEOUT, if it is set, else `otherwise`. Throws zero::Error if it
/// is no whole number of seconds from 1 to 1,000,000.
std::chrono::milliseconds time_limit(std::chrono::milliseconds otherwise);

/// The environment variable ZERO_RANKS_PER_HOST: how many ranks with consecutive numbers count as a
/// host; 0 if it is not set. Throws zero::Error if it is no whole number of 1 or more.
int ranks_per_host();

/// The environment variable ZERO_LINK ("100mbit", "1gbit", "30MB/s") in bytes a second; 0 if it is
/// not set. Throws zero::Error that says what is right if it is something else.
double link_rate();

/// The same text on processes that see the same process ids, and on no others.
std::string where_pids_are_valid();

/// True if only processes of this machine can reach the address: "localhost", "::1", "127.…".
bool is_loopback(const std::string& address);

}  // namespace zero::dist
