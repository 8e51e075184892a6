#pragma once

#include <zero/base/scoped_flag.hpp>

namespace zero::nn {

/// While it lives, a backward pass on this thread calls no hooks of parameters, such as those of
/// on_gradient_ready(), because it runs inside another one (a checkpoint takes them away). The
/// outer one adds more to the same gradients and calls them when these are complete.
using SuppressGradientHooks = ScopedFlag<struct SuppressGradientHooksTag>;

}  // namespace zero::nn
