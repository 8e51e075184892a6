#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <utility>

#include <zero/base/error.hpp>
#include <zero/distributed/backend.hpp>

namespace zero::dist {
namespace {

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

void make_backends(Place& place, Connection& joined) {
  const auto& [device, make] = backend(place.options.backend);
  if (device != at::kCPU) joined.device = make(place);
  if (place.size == 1) return;
  // A GPU's driver may have memory that other processes cannot read.
  joined.cpu = device == at::kCPU ? make(place) : make_cpu_backend(place, /*tcp=*/true);
}

}  // namespace zero::dist
