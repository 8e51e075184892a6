#pragma once

#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include <zero/base/error.hpp>

namespace zero::nn {

/// For the backward functions of this folder: throws zero::Error if autograd records backward
/// itself (create_graph), because they cannot be differentiated a second time.
inline void require_once_differentiable(const char* function) {
  if (!c10::GradMode::is_enabled()) return;
  throw Error(fmt::format("'{}' cannot be differentiated twice: call backward without create_graph",
                          function));
}

}  // namespace zero::nn
