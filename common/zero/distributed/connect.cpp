#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>

#include <zero/base/error.hpp>
#include <zero/distributed/backend.hpp>
#include <zero/distributed/connect.hpp>
#include <zero/distributed/host/host_communicator.hpp>
#include <zero/distributed/store/folder_store.hpp>
#include <zero/distributed/store/timed_store.hpp>
#include <zero/distributed/store/watched_store.hpp>

namespace zero::dist {
namespace {

// Names the missing ranks before the backend tries to connect; its own message would not.
void wait_for_everybody(const StorePtr& store, int rank, int size,
                        std::chrono::milliseconds timeout) {
  const auto key = [](int r) { return fmt::format("here/{}", r); };
  store->set(key(rank), std::vector<std::uint8_t>{1});
  std::vector<std::string> keys;
  for (int r = 0; r < size; ++r) keys.push_back(key(r));
  try {
    store->wait(keys, timeout);
  } catch (const Error& error) {
    throw Error(fmt::format("not all ranks came: {}", error.what()));
  } catch (const std::exception& error) {
    std::vector<int> missing;
    for (int r = 0; r < size; ++r) {
      try {
        if (!store->check({key(r)})) missing.push_back(r);
      } catch (const std::exception&) {
        throw Error(fmt::format("the store of rank 0 is gone: {}", first_line(error.what())));
      }
    }
    throw Error(
        fmt::format("rank{} {} of {} did not come within {} s: start {} ranks in all with the "
                    "same address and port",
                    missing.size() == 1 ? "" : "s", fmt::join(missing, ", "), size,
                    timeout.count() / 1000.0, size));
  }
}

std::map<std::string, MakeCommunicator>& backends() {
  static std::map<std::string, MakeCommunicator> known{
      {"gloo", [](Place place, const ConnectOptions& options) {
         return make_cpu_communicator(std::move(place.store), std::move(place.group), options);
       }}};
  return known;
}

const MakeCommunicator& backend(const std::string& name) {
  const auto found = backends().find(name);
  if (found != backends().end()) return found->second;
  std::vector<std::string> known;
  for (const auto& entry : backends()) known.push_back(entry.first);
  throw Error(fmt::format("backend '{}' is not in this program, which has {}{}", name,
                          fmt::join(known, ", "),
                          name == "nccl" ? ": link zero::cuda and call dist::enable_nccl()" : ""));
}

std::unique_ptr<Communicator> connect_through(const StorePtr& base, int server, int rank, int size,
                                              int local_rank, const ConnectOptions& options) {
  const MakeCommunicator& make = backend(options.backend);
  StorePtr store = c10::make_intrusive<WatchedStore>(options.prefix, base);
  wait_for_everybody(store, rank, size, options.timeout);
  GroupPtr group;
  try {
    group = make_gloo_group(store, rank, size, options.loopback, options.timeout);
  } catch (const std::exception& error) {
    throw Error(fmt::format("rank {} could not connect to the other {} ranks: {}", rank, size - 1,
                            first_line(error.what())));
  }
  return make(
      {StoreExchange(store, rank, size, options.timeout, server), std::move(group), local_rank},
      options);
}

StorePtr tcp_store(const RankEnvironment& env, std::chrono::milliseconds timeout) {
  c10d::TCPStoreOptions store_options;
  store_options.port = static_cast<std::uint16_t>(env.master_port);
  store_options.isServer = env.rank == 0 && !env.store_is_served;
  store_options.waitWorkers = false;  // wait_for_everybody() names missing ranks
  store_options.timeout = timeout;
  try {
    auto store = c10::make_intrusive<c10d::TCPStore>(env.master_address, store_options);
    return c10::make_intrusive<TimedStore>(
        std::move(store), fmt::format("the store at {}:{}", env.master_address, env.master_port),
        timeout);
  } catch (const std::exception& error) {
    const std::string cause = first_line(error.what());
    if (store_options.isServer && cause.find("listen") != std::string::npos) {
      throw Error(
          fmt::format("rank 0 cannot listen on port {}: it is taken, or not allowed; choose "
                      "another MASTER_PORT ({})",
                      env.master_port, cause));
    }
    throw Error(fmt::format(
        "rank {} did not reach rank 0 at {}:{} within {} s; MASTER_ADDR must be "
        "the name or the address of rank 0's machine: {}",
        env.rank, env.master_address, env.master_port, timeout.count() / 1000.0, cause));
  }
}

// The same text on all ranks of a host, and on no others. The name alone is often "localhost".
std::string text_of_host() {
  char name[256] = {};
  ::gethostname(name, sizeof name - 1);
  std::string start;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), start);
  const char* node = std::getenv("GROUP_RANK");
  return fmt::format("{} {} {}", name, start, node == nullptr ? "" : node);
}

// Numbers for these texts, by rank: that of the first rank with the same text.
std::vector<int> hosts_of(const std::vector<std::string>& texts) {
  std::vector<int> hosts;
  for (const std::string& text : texts) {
    hosts.push_back(static_cast<int>(std::find(texts.begin(), texts.end(), text) - texts.begin()));
  }
  return hosts;
}

}  // namespace

void add_backend(const std::string& name, MakeCommunicator make) {
  backends()[name] = std::move(make);
}

std::unique_ptr<Communicator> connect(const RankEnvironment& environment,
                                      const ConnectOptions& options) {
  if (environment.world_size == 1) return connect_alone(options);
  ConnectOptions adjusted = options;
  adjusted.prefix = fmt::format("attempt/{}/{}", environment.restarts, options.prefix);
  adjusted.loopback = adjusted.loopback || is_loopback(environment.master_address);
  auto communicator =
      connect_through(tcp_store(environment, options.timeout), environment.store_is_served ? -1 : 0,
                      environment.rank, environment.world_size, environment.local_rank, adjusted);
  communicator->set_hosts(hosts_of(communicator->exchange(text_of_host())));
  return communicator;
}

std::unique_ptr<Communicator> connect_in_folder(const std::filesystem::path& folder, int rank,
                                                int size, ConnectOptions options) {
  if (size == 1) return connect_alone(options);
  options.loopback = true;
  auto store = c10::make_intrusive<FolderStore>(folder);
  store->setTimeout(options.timeout);
  return connect_through(store, /*server=*/-1, rank, size, /*local_rank=*/rank, options);
}

std::unique_ptr<Communicator> connect_alone(const ConnectOptions& options) {
  return backend(options.backend)({StoreExchange(options.timeout), nullptr, 0}, options);
}

}  // namespace zero::dist
