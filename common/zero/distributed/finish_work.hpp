#pragma once

#include <functional>

#include <zero/distributed/work.hpp>

namespace zero::dist {

/// A handle for `work` that also processes its output: the first wait_output() or wait() calls
/// `finish` before it returns; later ones do not. `finish` and what it holds live until `work` is
/// complete.
Work finish_with(Work work, std::function<void()> finish);

}  // namespace zero::dist
