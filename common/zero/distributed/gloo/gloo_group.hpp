#pragma once

// Private to zero/distributed.

#include <chrono>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <zero/distributed/store/store.hpp>

namespace zero::dist {

using GroupPtr = c10::intrusive_ptr<c10d::ProcessGroupGloo>;

/// Makes a Gloo group over `store` on the interfaces of GLOO_SOCKET_IFNAME, else loopback or the
/// host's. `world_rank`: of this rank, for messages.
GroupPtr make_gloo_group(const StorePtr& store, int rank, int size, int world_rank, bool loopback,
                         std::chrono::milliseconds timeout);

}  // namespace zero::dist
