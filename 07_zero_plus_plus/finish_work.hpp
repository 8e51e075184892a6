#pragma once

#include <functional>

#include <zero/distributed/communicator.hpp>

namespace zero {

/// A handle for `work` and what is to be done with its output: the first wait_output() or wait()
/// that returns has called `finish`, once. `finish` lives until `work` is complete, and so does
/// what it holds.
dist::Work finish_with(dist::Work work, std::function<void()> finish);

}  // namespace zero
