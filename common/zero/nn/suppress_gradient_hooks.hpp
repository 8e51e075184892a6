#pragma once

#include <zero/base/scoped_flag.hpp>

namespace zero::nn {

/// While it lives, a backward pass on this thread runs inside another one, for a checkpoint, which
/// takes the hooks of its parameters away: the outer one adds more to the same gradients and calls
/// the hooks when these are complete. Until then no unit is over.
using SuppressGradientHooks = ScopedFlag<struct SuppressGradientHooksTag>;

}  // namespace zero::nn
