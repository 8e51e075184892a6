#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <map>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>

#include <zero/base/error.hpp>
#include <zero/base/variable.hpp>
#include <zero/distributed/backend.hpp>
#include <zero/distributed/connect.hpp>
#include <zero/distributed/gloo/gloo_backend.hpp>
#include <zero/distributed/hierarchical/hierarchical_backend.hpp>
#include <zero/distributed/host/host_backend.hpp>
#include <zero/distributed/store/folder_store.hpp>
#include <zero/distributed/store/timed_store.hpp>

namespace zero::dist {
namespace {

constexpr const char* kGaveUp = "gave up";

// So that a rank that comes after all does not wait for this one.
void tell_that_it_gave_up(const StorePtr& store, int rank) {
  try {
    store->set(kGaveUp, std::to_string(rank));
  } catch (const std::exception&) {
    // Rank 0, which serves the store, has given up, too.
  }
}

// Names the missing ranks before the backend tries to connect; its own message would not.
void wait_for_everybody(const StorePtr& store, int rank, int size,
                        std::chrono::milliseconds timeout) {
  const auto key = [](int r) { return fmt::format("here/{}", r); };
  store->set(key(rank), std::vector<std::uint8_t>{1});
  std::vector<std::string> keys;
  for (int r = 0; r < size; ++r) keys.push_back(key(r));
  try {
    store->wait(keys, timeout);
    if (store->check({kGaveUp})) {
      throw Error(fmt::format("rank {} has waited for all ranks for {} s and given up",
                              store->get_to_str(kGaveUp), timeout.count() / 1000.0));
    }
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
    tell_that_it_gave_up(store, rank);
    throw Error(
        fmt::format("rank{} {} of {} did not come within {} s: start {} ranks in all with the "
                    "same address and port",
                    missing.size() == 1 ? "" : "s", fmt::join(missing, ", "), size,
                    timeout.count() / 1000.0, size));
  }
}

std::string transport_of(const Place& place) {
  const std::string transport = base::variable("ZERO_TRANSPORT").value_or(place.options.transport);
  if (transport == "auto" || transport == "host" || transport == "tcp") return transport;
  throw Error(fmt::format("transport '{}' is unknown: auto, host or tcp", transport));
}

// The fastest way between CPU tensors of these ranks that ZERO_TRANSPORT, the options and the
// system allow.
std::unique_ptr<Backend> make_cpu_backend(const Place& place, bool tcp) {
  const std::string mode = tcp ? "tcp" : transport_of(place);
  const int world_rank = place.store->call_log().world_rank(place.rank);
  GroupPtr group = make_gloo_group(place.store->store(), place.rank, place.size, world_rank,
                                   place.options.loopback, place.options.timeout);
  std::string reason;
  auto transport = HostTransport::open(place, /*wanted=*/mode != "tcp", reason);
  if (mode == "host" && transport == nullptr) {
    throw Error(fmt::format(
        "the ranks cannot read each other's memory: {}; choose transport auto or tcp", reason));
  }
  auto gloo =
      std::make_unique<GlooBackend>(place, std::move(group), fmt::format("TCP ({})", reason));
  if (transport == nullptr) return gloo;
  return std::make_unique<HostBackend>(place, std::move(transport), std::move(gloo));
}

GlooBackend* gloo_in(Backend* backend) {
  if (auto* const over = dynamic_cast<HierarchicalBackend*>(backend)) backend = &over->direct();
  if (auto* const host = dynamic_cast<HostBackend*>(backend)) backend = &host->other();
  return dynamic_cast<GlooBackend*>(backend);
}

struct Registered {
  at::DeviceType device;
  MakeBackend make;
};

std::map<std::string, Registered>& backends() {
  static std::map<std::string, Registered> known{
      {"gloo", {at::kCPU, [](Place& place) { return make_cpu_backend(place, /*tcp=*/false); }}}};
  return known;
}

const Registered& backend(const std::string& name) {
  const auto found = backends().find(name);
  if (found != backends().end()) return found->second;
  std::vector<std::string> known;
  for (const auto& entry : backends()) known.push_back(entry.first);
  throw Error(fmt::format("backend '{}' is not in this program, which has {}{}", name,
                          fmt::join(known, ", "),
                          name == "nccl" ? ": link zero::cuda and call dist::enable_nccl()" : ""));
}

Connection join(Place place);

// The connection of a group of these ranks, of which this rank is rank `rank`.
Connection split(const Place& place, int rank, const std::vector<int>& ranks,
                 const std::string& label) {
  Place group = place;
  group.rank = rank;
  group.size = static_cast<int>(ranks.size());
  StorePtr store;
  if (group.size > 1) {
    store = c10::make_intrusive<c10d::PrefixStore>(
        fmt::format("group/{}/{}", label, fmt::join(ranks, ",")), place.store->store());
  }
  const auto server = std::find(ranks.begin(), ranks.end(), place.store->server());
  group.store = std::make_shared<StoreExchange>(
      store, rank, group.size, place.options.timeout,
      server == ranks.end() ? -1 : static_cast<int>(server - ranks.begin()));
  std::vector<int> world_ranks;
  for (const int r : ranks) world_ranks.push_back(place.store->call_log().world_rank(r));
  group.store->call_log().set_world_ranks(std::move(world_ranks));
  return join(std::move(group));
}

// Gives a connection a way between its hosts that sends less where there is one. Called by all
// ranks; `number` tells this call from those before.
void over_hosts(const Place& place, int number, Connection& connection) {
  std::unique_ptr<Backend>& cpu = connection.cpu;
  if (auto* const earlier = dynamic_cast<HierarchicalBackend*>(cpu.get())) {
    cpu = earlier->take_direct();
  }
  connection.routes.reset();
  GlooBackend* const gloo = gloo_in(cpu.get());
  const std::string choice = HostRoutes::choice(place.options.between_hosts);
  const auto routes = HostRoutes::of(connection.hosts, choice);
  if (!routes || gloo == nullptr) return;
  // Ranks that read each other's memory are on one machine, whatever they call hosts.
  const bool on_one_machine = dynamic_cast<HostBackend*>(cpu.get()) != nullptr;
  const bool goes_directly = choice == "direct" || (choice == "auto" && on_one_machine);
  // Ranks that chose differently would take different ways: then all go directly.
  const std::string mine = goes_directly ? "direct" : choice;
  for (const std::string& theirs : place.store->exchange(mine)) {
    if (goes_directly || theirs != mine) return;
  }
  std::vector<int> of_host;
  for (int p = 0; p < routes->per_host(); ++p) {
    of_host.push_back(routes->rank_at(routes->host_of(place.rank), p));
  }
  std::array<Connection, 2> inside;
  for (std::size_t line = 0; line < inside.size(); ++line) {
    // A label that no group of the program has: their keys stand in the same store.
    inside[line] = split(place, routes->place_of(place.rank), of_host,
                         fmt::format("/inside a host/{}/{}", number, line));
    auto* const host = dynamic_cast<HostBackend*>(inside[line].cpu.get());
    for (const std::string& said : place.store->exchange(host != nullptr ? "can" : "cannot")) {
      if (said != "can") return;
    }
    host->host_transport().set_part_of(place.store->call_log());
  }
  cpu = std::make_unique<HierarchicalBackend>(place, *routes, std::move(cpu), gloo->links(),
                                              std::move(inside));
  connection.routes = routes;
}

// Called by all ranks of the group that `place` describes.
Connection join(Place place) {
  Connection joined{.rank = place.rank, .size = place.size};
  const auto& [device, make] = backend(place.options.backend);
  if (device != at::kCPU) joined.device = make(place);
  if (place.size > 1) {
    // A GPU's driver may have memory that other processes cannot read.
    joined.cpu = device == at::kCPU ? make(place) : make_cpu_backend(place, /*tcp=*/true);
  }
  joined.order = place.options.order;
  joined.store = place.store;
  if (device == at::kCPU) {
    joined.over_hosts = [place, number = 0](Connection& connection) mutable {
      over_hosts(place, number++, connection);
    };
  }
  joined.split = [place = std::move(place)](int rank, const std::vector<int>& ranks,
                                            const std::string& label) {
    return split(place, rank, ranks, label);
  };
  return joined;
}

// The ranks wait for each other for `patience` times the time limit.
std::unique_ptr<Communicator> connect_through(const StorePtr& base, int server, int rank, int size,
                                              int local_rank, ConnectOptions options,
                                              int patience = 1) {
  options.timeout = time_limit(options.timeout);
  backend(options.backend);  // throws before ranks wait for each other
  StorePtr store = c10::make_intrusive<c10d::PrefixStore>(options.prefix, base);
  wait_for_everybody(store, rank, size, patience * options.timeout);
  auto exchange = std::make_shared<StoreExchange>(store, rank, size, options.timeout, server);
  return std::make_unique<Communicator>(
      join({rank, size, local_rank, std::move(exchange), options}));
}

StorePtr tcp_store(const RankEnvironment& env, std::chrono::milliseconds timeout) {
  c10d::TCPStoreOptions store_options;
  store_options.port = static_cast<std::uint16_t>(env.master_port);
  store_options.isServer = env.rank == 0 && !env.store_is_served;
  store_options.waitWorkers = false;  // wait_for_everybody() names missing ranks
  store_options.timeout = timeout;
  try {
    return c10::make_intrusive<TimedStore>(
        fmt::format("the store at {}:{}", env.master_address, env.master_port), timeout,
        [address = env.master_address, store_options]() -> StorePtr {
          return c10::make_intrusive<c10d::TCPStore>(address, store_options);
        });
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
  return fmt::format("{} {} {}", name, start, base::variable("GROUP_RANK").value_or(""));
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

void add_backend(const std::string& name, at::DeviceType device, MakeBackend make) {
  backends()[name] = {device, std::move(make)};
}

std::unique_ptr<Communicator> connect(const RankEnvironment& environment,
                                      const ConnectOptions& options) {
  if (environment.world_size == 1) return connect_alone(options);
  ConnectOptions adjusted = options;
  adjusted.prefix = fmt::format("attempt/{}/{}", environment.restarts, options.prefix);
  adjusted.loopback = adjusted.loopback || is_loopback(environment.master_address);
  // A launcher starts the ranks of a host again as soon as one of them has failed. Those of another
  // host may only then begin to notice it, and that can take them the time limit.
  const int patience = environment.restarts > 0 ? 2 : 1;
  auto communicator = connect_through(
      tcp_store(environment, time_limit(options.timeout)), environment.store_is_served ? -1 : 0,
      environment.rank, environment.world_size, environment.local_rank, adjusted, patience);
  communicator->set_hosts(hosts_of(communicator->exchange(text_of_host())));
  return communicator;
}

std::unique_ptr<Communicator> connect_in_folder(const std::filesystem::path& folder, int rank,
                                                int size, ConnectOptions options) {
  if (size == 1) return connect_alone(options);
  options.loopback = true;
  auto store = c10::make_intrusive<FolderStore>(folder);
  store->setTimeout(time_limit(options.timeout));
  return connect_through(store, /*server=*/-1, rank, size, /*local_rank=*/rank, options);
}

std::unique_ptr<Communicator> connect_alone(const ConnectOptions& options) {
  auto exchange = std::make_shared<StoreExchange>(options.timeout);
  return std::make_unique<Communicator>(
      join({0, 1, /*local_rank=*/0, std::move(exchange), options}));
}

GroupPtr gloo_group_of(Communicator& communicator) {
  const GlooBackend* const gloo = gloo_in(communicator.backend());
  return gloo == nullptr ? nullptr : gloo->links().group;
}

}  // namespace zero::dist
