#pragma once

#include <memory>
#include <vector>

#include <zero/optim/named_groups.hpp>
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
/// A group for each of `groups`, chosen by names in `module`; see split_by_name().
///
///     optim::adamw(*net, {{.weight_decay = 0.1}, {.weight_decay = 0}},
///                  [](const std::string& name, const at::Tensor& p) { return p.dim() > 1 ? 0 : 1;
///                  })
OptimizerFactory adamw(const torch::nn::Module& module, std::vector<AdamWOptions> groups,
                       const GroupRule& rule);

}  // namespace zero::optim
