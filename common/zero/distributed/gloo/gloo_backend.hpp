#pragma once

// Private to common/zero/distributed.

#include <zero/distributed/backend.hpp>

/// What carries CPU tensors: make_cpu_backend() of backend.hpp. Over Gloo they go by direct
/// messages between pairs of ranks. Where ranks read each other's memory (host/), Gloo's group
/// still carries the messages between two ranks, and texts while the connection is made.
namespace zero::dist {}
