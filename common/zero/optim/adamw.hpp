#pragma once

#include <torch/nn/module.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
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
/// tensors or shards of any length: every element goes through the kernel's vector body, so that
/// the result does not depend on where a tensor begins or ends. Parameters must be contiguous.
std::unique_ptr<Optimizer> make_adamw(const std::vector<Group<AdamWOptions>>& groups);

/// One group with all parameters.
OptimizerFactory adamw(AdamWOptions options = {});
/// Chooses the group of a parameter, an index, by its dotted path in the module and its shape.
using GroupRule = std::function<std::size_t(const std::string& name, const at::Tensor& parameter)>;

/// A group for each of `groups`, chosen by names in `module`. A tied parameter has its first name.
/// The optimizer takes some of the module's parameters. Acts on this rank alone; a strategy
/// compares the groups of all ranks. @throws zero::Error, when it is made, for a parameter that the
/// module does not have, and, by its name, for one for which the rule chooses a group that there is
/// not.
///
///     optim::adamw(*net, {{.weight_decay = 0.1}, {.weight_decay = 0}},
///                  [](const std::string& name, const at::Tensor& p) { return p.dim() > 1 ? 0 : 1;
///                  })
OptimizerFactory adamw(const torch::nn::Module& module, std::vector<AdamWOptions> groups,
                       const GroupRule& rule);

}  // namespace zero::optim
