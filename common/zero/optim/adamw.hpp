#pragma once

#include <memory>
#include <vector>

#include <zero/optim/optimizer.hpp>

namespace zero::optim {

/// AdamW (Loshchilov and Hutter 2019, algorithm 2).
struct AdamWOptions {
  double learning_rate = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0.01;  ///< decoupled: parameters shrink by learning_rate * weight_decay
};

/// AdamW on LibTorch's fused kernel (at::_fused_adamw_), on CPU or CUDA. Parameters may be whole
/// tensors or shards of any length: every element goes through the kernel's vector body (see
/// padded_kernel.hpp), so that the result does not depend on where a tensor begins or ends.
/// Parameters must be contiguous.
std::unique_ptr<Optimizer> make_adamw(std::vector<Group<AdamWOptions>> groups);

/// One group with all parameters.
OptimizerFactory adamw(AdamWOptions options = {});

}  // namespace zero::optim
