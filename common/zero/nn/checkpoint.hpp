#pragma once

#include <torch/types.h>

#include <functional>
#include <vector>

namespace zero::nn {

/// A part of a model as a function of its inputs; parameters it reads from where it has them.
using CheckpointBody = std::function<at::Tensor(const std::vector<at::Tensor>& inputs)>;

/// Activation checkpointing (Chen et al. 2016, "Training deep nets with sublinear memory cost"):
/// gives body(inputs), of which only the inputs are kept for backward. What `body` computes on its
/// way lives while it runs, is dropped, and is computed again when backward comes to it, for one
/// more forward of the part.
///
/// `inputs` are defined tensors of any dtype, at least one; those that require a gradient get one.
/// `body` must return the same result every time, from the same random numbers of LibTorch's
/// default generators (dropout draws the same mask again) and under the same autocast, with at most
/// one output, and must read no other tensor that requires a gradient than its inputs and
/// parameters (leaves of autograd): what it reads of the activations outside goes through `inputs`.
/// It is kept until the graph goes.
///
/// Results and gradients are those without a checkpoint, to the last bit where layers write
/// gradients in place (functional.hpp) or a parameter is used once. In a few ways this differs from
/// the usual construction, a function with a backward pass inside its backward:
///   - parameters train although no input requires a gradient (the first part of a model);
///   - on_gradient_ready() is called once per backward, after the last use, wherever the uses are:
///     in one checkpoint, in several, or outside. It is called when the backward of the part is
///     over, so the gradients of the whole part are alive together;
///   - torch::autograd::grad() with respect to inputs leaves `.grad` of parameters alone.
/// To that end the first run has autograd on, to see which parameters `body` reads.
///
/// Inside a unit call it in the function given to Unit::run(): the unit's hooks fire once for each
/// use as without it, and its parameters are whole while `body` runs again, because pre_backward()
/// comes first. Around units, their hooks fire as often as they run: forward hooks twice.
///
/// Without a graph to record (at::NoGradGuard) it is body(inputs). Differentiable once. Throws
/// zero::Error for no or an undefined input, or a body that reads something else that requires a
/// gradient; what `body` throws comes out of forward or backward.
at::Tensor checkpoint(const CheckpointBody& body, const std::vector<at::Tensor>& inputs);

}  // namespace zero::nn
