#pragma once

// Private to common/zero/distributed: the backends of ConnectOptions::backend.

#include <functional>
#include <memory>
#include <string>

#include <zero/distributed/gloo/gloo_communicator.hpp>

namespace zero::dist {

/// A connected rank: its store, its group and its place among the ranks.
struct Place {
  StoreExchange store;
  GroupPtr group;  ///< for CPU tensors; null for one rank
  int local_rank;  ///< among the ranks of this machine
};

/// Makes the communicator of a backend. Called by all ranks; may block and throw zero::Error.
using MakeCommunicator =
    std::function<std::unique_ptr<Communicator>(Place place, const ConnectOptions& options)>;

/// Adds backend `name` to connect(). "gloo" is always there. Not thread-safe: call it at start-up.
void add_backend(const std::string& name, MakeCommunicator make);

}  // namespace zero::dist
