#pragma once

#include <zero/base/variable.hpp>

#include "set_variable.hpp"

namespace zero::testing {

/// Ranks that start while it lives send tensors between hosts in this way
/// (ConnectOptions::between_hosts). Over TCP ranks of a host have no way inside it.
class BetweenHosts {
 public:
  explicit BetweenHosts(const char* way) : way_("ZERO_BETWEEN_HOSTS", way) {}

 private:
  static std::string inside_a_host() {
    const std::string transport = base::variable("ZERO_TRANSPORT").value_or("");
    return transport == "tcp" ? "auto" : transport;
  }

  SetVariable transport_{"ZERO_TRANSPORT", inside_a_host()};
  SetVariable way_;
};

}  // namespace zero::testing
