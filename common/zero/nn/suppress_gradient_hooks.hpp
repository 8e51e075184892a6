#pragma once

#include <zero/base/scoped_flag.hpp>

namespace zero::nn {

/// While it lives, the callbacks of on_gradient_ready() are not called on this thread: for a
/// backward pass inside another one. The outer one adds more to the same gradients and calls them
/// when these are complete.
using SuppressGradientHooks = ScopedFlag<struct SuppressGradientHooksTag>;

}  // namespace zero::nn
