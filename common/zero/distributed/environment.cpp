#include <fmt/format.h>

#include <cctype>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <zero/base/error.hpp>
#include <zero/distributed/environment.hpp>

namespace zero::dist {
namespace {

// The variables in which one launcher passes a process its rank and the numbers of ranks.
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
    {"MVAPICH", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK",
     "MV2_COMM_WORLD_LOCAL_SIZE"},
    {"MPICH or Intel MPI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
    // Last: mpiexec starts its own processes by it. It has no plain number of a node's tasks.
    {"Slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", ""},
};

const char* variable(const char* name) { return *name == '\0' ? nullptr : std::getenv(name); }

int number(const char* name, int low, int high) {
  const std::string text = variable(name);
  int value = 0;
  const char* const end = text.data() + text.size();
  if (const auto [read, problem] = std::from_chars(text.data(), end, value);
      problem != std::errc() || read != end || value < low || value > high) {
    throw Error(fmt::format("{}='{}' makes no sense: a whole number from {} to {} is needed", name,
                            text, low, high));
  }
  return value;
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
  env.said_by = fmt::format("{} and {}", names.rank, names.world_size);
  env.world_size = number(names.world_size, 1, kMaximumRanks);
  env.rank = number(names.rank, 0, env.world_size - 1);
  env.local_rank = number_or(names.local_rank, 0, 0, env.world_size - 1);
  if (const char* address = variable("MASTER_ADDR")) env.master_address = address;
  if (variable(names.local_world_size) != nullptr) {
    env.local_world_size = number(names.local_world_size, 1, env.world_size);
  } else if (is_loopback(env.master_address)) {
    // Ranks that meet there are all on this machine.
    env.local_world_size = env.world_size;
    if (variable(names.local_rank) == nullptr) env.local_rank = env.rank;
  }
  env.master_port = number_or("MASTER_PORT", env.master_port, 1, 65535);
  env.restarts = number_or("TORCHELASTIC_RESTART_COUNT", 0, 0, kMaximumRanks);
  const char* served = variable("TORCHELASTIC_USE_AGENT_STORE");
  env.store_is_served = served != nullptr && std::string(served) == "True";
  return env;
}

}  // namespace

std::chrono::milliseconds time_limit(std::chrono::milliseconds otherwise) {
  if (variable("ZERO_TIMEOUT") == nullptr) return otherwise;
  return std::chrono::seconds(number("ZERO_TIMEOUT", 1, 1'000'000));
}

int ranks_per_host() { return number_or("ZERO_RANKS_PER_HOST", 0, 1, kMaximumRanks); }

double link_rate() {
  const char* const text = variable("ZERO_LINK");
  if (text == nullptr || *text == '\0') return 0;
  constexpr std::pair<const char*, double> kUnits[] = {
      {"mbit", 1e6 / 8}, {"gbit", 1e9 / 8}, {"MB/s", 1e6}, {"GB/s", 1e9}};
  char* unit = nullptr;
  const double amount = std::isdigit(*text) != 0 ? std::strtod(text, &unit) : 0;
  for (const auto& [name, bytes] : kUnits) {
    if (amount > 0 && std::string_view(unit) == name) return amount * bytes;
  }
  throw Error(fmt::format(
      "ZERO_LINK='{}' makes no sense: a rate such as 100mbit, 1gbit or 30MB/s is needed", text));
}

std::string where_pids_are_valid() {
  std::string start;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), start);
  std::error_code ignored;
  return start + "/" + std::filesystem::read_symlink("/proc/self/ns/pid", ignored).string();
}

bool is_loopback(const std::string& address) {
  return address == "localhost" || address == "::1" || address.rfind("127.", 0) == 0;
}

std::optional<RankEnvironment> rank_environment() {
  std::vector<const Names*> found;
  for (const Names& names : kLaunchers) {
    if (variable(names.rank) != nullptr || variable(names.world_size) != nullptr) {
      found.push_back(&names);
    }
  }
  if (found.empty() && variable("PMIX_RANK") != nullptr) {
    throw Error(fmt::format(
        "PMIX_RANK='{}' says that a launcher started this process among others, and no variable "
        "says among how many: set RANK and WORLD_SIZE, or unset PMIX_RANK for a run alone",
        variable("PMIX_RANK")));
  }
  if (found.empty()) return std::nullopt;
  RankEnvironment env = read(*found.front());
  static bool said = false;
  if (found.size() > 1 && env.rank == 0 && !std::exchange(said, true)) {
    fmt::print(stderr,
               "this process has variables of {} and of {}: {} of {} count, rank {} of {}\n",
               found[0]->launcher, found[1]->launcher, env.said_by, env.launcher, env.rank,
               env.world_size);
  }
  return env;
}

}  // namespace zero::dist
