#include <fmt/format.h>
#include <fmt/ranges.h>
#include <net/if.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <sstream>

#include <zero/base/error.hpp>
#include <zero/base/variable.hpp>
#include <zero/distributed/gloo/gloo_group.hpp>

namespace zero::dist {
namespace {

using Gloo = c10d::ProcessGroupGloo;
using Devices = decltype(Gloo::Options::devices);

constexpr const char* kVariable = "GLOO_SOCKET_IFNAME";

// A write to a lost peer raises SIGPIPE, which silently ends a C++ program. If the signal is
// ignored, the write returns an error instead.
void survive_lost_peers() {
  struct sigaction present {};
  if (::sigaction(SIGPIPE, nullptr, &present) == 0 && present.sa_handler == SIG_DFL) {
    ::signal(SIGPIPE, SIG_IGN);
  }
}

std::vector<std::string> interfaces_of_this_machine() {
  std::vector<std::string> names;
  struct if_nameindex* all = ::if_nameindex();
  if (all == nullptr) return names;
  for (const auto* one = all; one->if_index != 0; ++one) names.emplace_back(one->if_name);
  ::if_freenameindex(all);
  return names;
}

// Interface names in the variable, separated by commas.
std::vector<std::string> named_interfaces() {
  std::istringstream words(base::variable(kVariable).value_or(""));
  std::vector<std::string> names;
  for (std::string name; std::getline(words, name, ',');) names.push_back(name);
  return names;
}

Devices devices_of(const std::vector<std::string>& names) {
  const std::vector<std::string> known = interfaces_of_this_machine();
  Devices devices;
  for (const std::string& name : names) {
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      throw Error(fmt::format("{} names '{}', and this machine's network interfaces are {}",
                              kVariable, name, fmt::join(known, ", ")));
    }
    try {
      devices.push_back(Gloo::createDeviceForInterface(name));
    } catch (const std::exception&) {
      throw Error(
          fmt::format("{} names '{}', which has no address to be reached at", kVariable, name));
    }
  }
  return devices;
}

// How ranks tried to reach each other, for an error message.
std::string way(const std::vector<std::string>& names, bool loopback) {
  if (!names.empty()) return fmt::format("by {}={}", kVariable, fmt::join(names, ","));
  if (loopback) return "by the loopback interface";
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  return fmt::format(
      "by the address of its name, '{}'; where that is not the network's, set {} to the "
      "interface that is (one of {})",
      host.data(), kVariable, fmt::join(interfaces_of_this_machine(), ", "));
}

}  // namespace

GroupPtr make_gloo_group(const StorePtr& store, int rank, int size, int world_rank, bool loopback,
                         std::chrono::milliseconds timeout) {
  survive_lost_peers();
  const std::vector<std::string> names = named_interfaces();
  const auto options = Gloo::Options::create(timeout);
  options->devices = devices_of(names);
  if (names.empty()) {
    options->devices.push_back(loopback ? Gloo::createDeviceForHostname("127.0.0.1")
                                        : Gloo::createDefaultDevice());
  }
  try {
    return c10::make_intrusive<Gloo>(store, rank, size, options);
  } catch (const std::exception& error) {
    throw Error(
        fmt::format("rank {} could not connect to the other {} ranks: {} (a rank is reached {})",
                    world_rank, size - 1, first_line(error.what()), way(names, loopback)));
  }
}

}  // namespace zero::dist
