#include <fmt/format.h>

#include <cerrno>
#include <cstdlib>
#include <string>

#include "zero/distributed/connect.hpp"
#include "zero/error.hpp"

namespace zero::dist {
namespace {

// The names under which one launcher tells a process who it is.
struct Names {
  const char* launcher;
  const char* rank;
  const char* world_size;
  const char* local_rank;
  const char* local_world_size;
};

constexpr Names kLaunchers[] = {
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"},
    // Slurm has no variable that is a plain number of tasks on this node.
    {"Slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", ""},
};

const char* variable(const char* name) { return *name == '\0' ? nullptr : std::getenv(name); }

int number(const char* name, int low, int high) {
  const std::string text = variable(name);
  errno = 0;
  char* end = nullptr;
  const long value = std::strtol(text.c_str(), &end, 10);
  if (errno != 0 || text.empty() || *end != '\0' || value < low || value > high) {
    throw Error(fmt::format("{}='{}' makes no sense: a whole number from {} to {} is needed", name,
                            text, low, high));
  }
  return static_cast<int>(value);
}

int number_or(const char* name, int otherwise, int low, int high) {
  return variable(name) == nullptr ? otherwise : number(name, low, high);
}

constexpr int kMaximumRanks = 1 << 20;

RankEnvironment read(const Names& names) {
  for (const char* needed : {names.rank, names.world_size}) {
    if (variable(needed) == nullptr) {
      throw Error(
          fmt::format("{} is not set, though other variables of {} are: both {} and {} are "
                      "needed, or neither for a run on this machine alone",
                      needed, names.launcher, names.rank, names.world_size));
    }
  }
  RankEnvironment env;
  env.launcher = names.launcher;
  env.world_size = number(names.world_size, 1, kMaximumRanks);
  env.rank = number(names.rank, 0, env.world_size - 1);
  env.local_rank = number_or(names.local_rank, 0, 0, env.world_size - 1);
  env.local_world_size = number_or(names.local_world_size, 1, 1, env.world_size);
  if (const char* address = variable("MASTER_ADDR")) env.master_address = address;
  env.master_port = number_or("MASTER_PORT", env.master_port, 1, 65535);
  env.restarts = number_or("TORCHELASTIC_RESTART_COUNT", 0, 0, kMaximumRanks);
  const char* served = variable("TORCHELASTIC_USE_AGENT_STORE");
  env.store_is_served = served != nullptr && std::string(served) == "True";
  return env;
}

}  // namespace

std::optional<RankEnvironment> rank_environment() {
  for (const Names& names : kLaunchers) {
    if (variable(names.rank) != nullptr || variable(names.world_size) != nullptr) {
      return read(names);
    }
  }
  return std::nullopt;
}

}  // namespace zero::dist
