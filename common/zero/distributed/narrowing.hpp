#pragma once

// Private to common/zero/distributed: reductions of 2-byte tensors as float32.

#include <functional>
#include <memory>
#include <vector>

#include <zero/distributed/communicator.hpp>

namespace zero::dist {

/// Returns work that waits for `work`, which reduces into `wide`, and then rounds `wide` into
/// `result`. Returns `work` itself if both have the same type or `work` is null. `watch`, if given,
/// is called if the rounded result is not finite.
std::unique_ptr<Work::Backend> narrowing(
    std::unique_ptr<Work::Backend> work, const at::Tensor& wide, const at::Tensor& result,
    std::function<void(const at::Tensor&, const std::vector<at::Tensor>&, bool)> watch = {});

}  // namespace zero::dist
