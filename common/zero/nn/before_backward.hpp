#pragma once

#include <torch/csrc/autograd/graph_task.h>
#include <torch/types.h>

#include <functional>
#include <utility>

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

/// Tells the first of several calls in each backward pass of autograd.
class OnceInAPass {
 public:
  /// True for the first call in the pass that runs.
  bool first() {
    const int current = torch::autograd::get_current_graph_task_id();
    return std::exchange(pass_, current) != current;
  }

 private:
  int pass_ = -2;  // differs from every number of a pass
};

}  // namespace zero::nn
