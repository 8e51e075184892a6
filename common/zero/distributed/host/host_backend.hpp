#pragma once

// Private to common/zero/distributed.

#include <memory>
#include <string>

#include <zero/distributed/backend.hpp>

namespace zero::dist {

/// Puts another backend in the place of `backend`, which goes on to carry messages between two
/// ranks: CPU tensors between ranks of one machine, which read each other's tensors in place.
/// Collectives copy once, where TCP copies twice, and sums none at all. The bits and the traffic
/// counters are the same as over TCP ("sent" is what peers read from this rank).
///
/// Called by all ranks of `place`; blocks. Returns why that is not possible, or not `wanted` by a
/// rank, as HostTransport::open() says it; `backend` then stays.
std::string put_host_before(std::unique_ptr<Backend>& backend, const Place& place, bool wanted);

}  // namespace zero::dist
