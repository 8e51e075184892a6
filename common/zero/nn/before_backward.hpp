#pragma once

#include <torch/types.h>

#include <functional>

namespace zero::nn {

/// Calls `callback` in each backward pass, before the operation that made `x` runs backward: after
/// the program's hooks on `x`, and not in a pass that ends at `x`. Of several callbacks of one
/// operation the last one set comes first, so that an outer unit begins before an inner one. They
/// live as long as the operation. `x` is no leaf.
///
/// It adds no operation to the graph: hooks that the program sets on `x`, and
/// torch::autograd::grad() with respect to `x`, see the whole gradient, also what reaches `x` as a
/// result that its own operation has saved (tanh() in a graph of create_graph).
void before_backward(const at::TensorBase& x, std::function<void()> callback);

}  // namespace zero::nn
