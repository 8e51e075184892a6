#pragma once

#include <torch/csrc/autograd/graph_task.h>

#include <utility>

namespace zero::nn {

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
