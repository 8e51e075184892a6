#pragma once

#include <torch/types.h>

#include <functional>

/// Where the gradient of a parameter is written.
///
/// Ordinary autograd hands a weight's gradient over as a tensor of its own, which is then added to
/// or becomes `.grad`. The layers of this project write into `.grad` themselves, as the output of
/// the matrix product: nothing is allocated besides the one gradient, nothing is copied, and a
/// strategy can say where that gradient lies (a view of its flat buffer).
namespace zero::nn {

/// The tensor that a backward function writes a parameter's gradient into.
struct GradientDestination {
  at::Tensor tensor;   ///< same shape and dtype as the parameter; it is the parameter's `.grad`
  bool fresh = false;  ///< true: the bytes mean nothing, overwrite all of them; false: add to them
};

/// Gives the destination of `parameter` for the use whose backward runs now.
///
/// Where `.grad` is defined, it is the destination, to be added to. Otherwise the destination is
/// fresh and is set as `.grad`: the tensor of the parameter's gradient provider if it has one, else
/// a new contiguous tensor, charged to memory::Category::kGradients. Call it only where something
/// is written, once for each use of the parameter, inside a backward function that returns an
/// undefined gradient for the parameter; hooks set with on_gradient_ready() then fire as always,
/// after the last use.
///
/// Throws zero::Error where a provider's tensor has another shape or dtype than the parameter.
GradientDestination gradient_destination(const at::Tensor& parameter);

/// Gives the tensor that a fresh gradient is to be written into: the same shape and dtype as the
/// parameter, on the same device, and not read by anyone else until the gradient is ready. It is
/// called on the thread that runs backward, at the first use of each backward that finds `.grad`
/// undefined, and may block.
using GradientProvider = std::function<at::Tensor()>;

/// Makes `provider` the source of fresh gradients of `parameter`; an empty function removes it.
/// Replaces an earlier one. The parameter is told apart by identity, not by name, and is not kept
/// alive. May be called on any thread, but not while a backward pass uses the parameter.
///
/// Only the functions of functional.hpp ask for destinations. A module that uses ordinary autograd
/// operations on the parameter never calls the provider: its gradient is whatever autograd made.
void set_gradient_provider(const at::Tensor& parameter, GradientProvider provider);

/// True where `parameter` has a gradient provider.
bool has_gradient_provider(const at::Tensor& parameter);

}  // namespace zero::nn
