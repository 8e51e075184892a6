#pragma once

// Private to common/zero/distributed.

#include <memory>

#include <zero/distributed/backend.hpp>

namespace zero::dist {

/// What carries CPU tensors: the fastest way between the ranks of `place` that ZERO_TRANSPORT, the
/// options and the system allow; with `tcp`, TCP. Called by all of them; blocks. Over Gloo tensors
/// go by direct messages between pairs of ranks. Where ranks read each other's memory (host/),
/// Gloo's group still carries the messages between two ranks, and texts while the connection is
/// made.
std::unique_ptr<Backend> make_cpu_backend(const Place& place, bool tcp);

}  // namespace zero::dist
