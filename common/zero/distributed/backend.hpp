#pragma once

// Private to common/zero/distributed: what ConnectOptions::backend can name.

#include <functional>
#include <memory>
#include <string>

#include <zero/distributed/gloo/gloo_communicator.hpp>

namespace zero::dist {

/// Where a rank stands once it has met the others.
struct Place {
  StoreExchange store;
  GroupPtr group;  ///< for CPU tensors; null for one rank
  int rank;
  int size;
  int local_rank;  ///< among the ranks of this machine
};

/// Makes the communicator of a backend. Called by all ranks; may block and throw zero::Error.
using MakeCommunicator =
    std::function<std::unique_ptr<Communicator>(Place place, const ConnectOptions& options)>;

/// Makes `name` known to connect(). "gloo" always is. Not thread-safe: call it at the start.
void add_backend(const std::string& name, MakeCommunicator make);

}  // namespace zero::dist
