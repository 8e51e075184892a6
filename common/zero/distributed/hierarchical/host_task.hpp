#pragma once

// Private to common/zero/distributed.

#include <zero/distributed/gloo/message_set.hpp>
#include <zero/distributed/hierarchical/host_routes.hpp>
#include <zero/distributed/host/host_backend.hpp>

namespace zero::dist {

/// What the collectives of a communicator over hosts share.
struct HostLinks {
  HostRoutes routes;
  int rank;
  HostBackend& inside;        ///< between the ranks of this host
  const GlooLinks& messages;  ///< between all ranks
};

/// A collective over hosts, of which a thread takes the steps.
class HostTask {
 public:
  virtual ~HostTask() = default;
  /// Takes the steps, on the thread. Blocks.
  virtual void run() = 0;
  /// What is left for the caller's thread after it. Blocks.
  virtual void finish() = 0;
};

}  // namespace zero::dist
