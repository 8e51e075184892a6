#pragma once

#include <torch/types.h>

#include <functional>
#include <memory>
#include <vector>

#include <zero/distributed/communicator.hpp>

namespace zero::nn {

/// A part of a model as a function of its inputs. It also reads parameters directly.
using CheckpointBody = std::function<at::Tensor(const std::vector<at::Tensor>& inputs)>;

/// Inputs of one checkpoint that are elsewhere between forward and backward.
class KeptInputs {
 public:
  virtual ~KeptInputs() = default;
  /// The tensors, where they were. With `again`, a later call must return them too.
  virtual std::vector<at::Tensor> take(bool again) = 0;
};

/// Where a checkpoint keeps its inputs of floating point (ZeRO-R). By default it keeps the tensors
/// themselves.
struct CheckpointOptions {
  /// Pa: ranks of a tensor axis, on which these inputs are the same. Of n ranks each keeps 1 / n of
  /// every input; backward gathers it before `body` runs again: as many bytes as an all-gather of
  /// the inputs, Purpose::kActivation. The ranks call in the same order. Not owned.
  dist::Communicator* partition_over = nullptr;
  /// Where those of a device go, or with `partition_over` this rank's parts of them: chapter 10 has
  /// keep_on_host() (Pa+cpu). On the CPU it is not called.
  std::function<std::shared_ptr<KeptInputs>(const std::vector<at::Tensor>& inputs)> keep = {};
};

/// Activation checkpointing (Chen et al. 2016, "Training deep nets with sublinear memory cost"):
/// returns body(inputs) and keeps only the inputs for backward. Intermediate results of `body` are
/// freed after the run and computed again in backward, which costs one more forward of the part.
///
/// `inputs` are defined tensors of any dtype, at least one; those that require a gradient get one.
/// `body` must return the same result every time, given the same random numbers of LibTorch's
/// default generators (dropout draws the same mask again) and the same autocast, with at most one
/// output. Apart from its inputs and parameters (leaves of autograd) it must read no tensor that
/// requires a gradient: pass activations through `inputs`. `body` is kept as long as the graph.
///
/// Results and gradients are those without a checkpoint, to the last bit if layers write gradients
/// in place (functional.hpp) or each parameter is used once. It differs in three ways from the
/// usual construction, a function that runs a backward pass inside its backward:
///   - parameters train even if no input requires a gradient (the first part of a model);
///   - on_gradient_ready() is called once per backward, after the last use of the parameter in any
///     checkpoint or outside. It is called when the backward of the part is over, so the gradients
///     of the whole part are alive together;
///   - torch::autograd::grad() with respect to inputs does not change `.grad` of parameters.
/// For this, autograd records the first run, to find the parameters that `body` reads.
///
/// Inside a unit, call it in the function given to Unit::run(). The unit's hooks then fire once for
/// each use, as without a checkpoint, and its parameters are whole while `body` runs again, because
/// pre_backward() comes first. Hooks of units inside `body` fire on every run: forward hooks twice.
///
/// Without a graph to record (at::NoGradGuard) it is body(inputs). Differentiable once. `options`
/// never change results. Throws zero::Error if `inputs` is empty or has an undefined tensor, if an
/// input cannot be cut evenly over CheckpointOptions::partition_over, or if `body` reads another
/// tensor that requires a gradient. Exceptions of `body` pass through.
at::Tensor checkpoint(const CheckpointBody& body, const std::vector<at::Tensor>& inputs,
                      const CheckpointOptions& options = {});

}  // namespace zero::nn
