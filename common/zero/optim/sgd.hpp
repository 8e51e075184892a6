#pragma once

#include <zero/optim/optimizer.hpp>

namespace zero::optim {

/// Stochastic gradient descent with momentum, as in torch.optim.SGD (no dampening).
struct SgdOptions {
  double learning_rate = 1e-2;
  double momentum = 0.9;
  double weight_decay = 0.0;  ///< added to the gradient
};

/// SGD on LibTorch's fused kernel (at::_fused_sgd_), on CPU or CUDA, for whole tensors and shards,
/// like make_adamw() of adamw.hpp. One group with all parameters.
OptimizerFactory sgd(SgdOptions options = {});

}  // namespace zero::optim
