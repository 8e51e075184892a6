#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <utility>

#include <zero/base/error.hpp>
#include <zero/base/variable.hpp>
#include <zero/distributed/backend.hpp>
#include <zero/distributed/gloo/gloo_backend.hpp>
#include <zero/distributed/gloo/link.hpp>
#include <zero/distributed/host/host_backend.hpp>
#include <zero/distributed/store/store_exchange.hpp>

namespace zero::dist {
namespace {

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

}  // namespace

void add_backend(const std::string& name, at::DeviceType device, MakeBackend make) {
  backends()[name] = {device, std::move(make)};
}

void verify_backend(const std::string& name) { backend(name); }

void open_link(Place& place) { place.link = Link::open(*place.store, place.rank, place.hosts); }

void make_backends(Place& place, Connection& joined) {
  const auto& [device, make] = backend(place.options.backend);
  if (device != at::kCPU) joined.device = make(place);
  if (place.size == 1) return;
  // A GPU's driver may have memory that other processes cannot read.
  joined.cpu = device == at::kCPU ? make(place) : make_cpu_backend(place, /*tcp=*/true);
}

}  // namespace zero::dist
