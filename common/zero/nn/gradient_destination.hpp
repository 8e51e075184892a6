#pragma once

#include <torch/types.h>

#include <functional>

/// Where the gradient of a parameter is written.
///
/// Ordinary autograd passes a weight's gradient as a tensor of its own, which is then added to
/// `.grad` or becomes it. The layers of this project write into `.grad` themselves, as the output
/// of the matrix product: no further tensor, no copy, and a strategy can choose where the gradient
/// lies (a view of its flat buffer).
namespace zero::nn {

/// The tensor into which a backward function writes a parameter's gradient.
struct GradientDestination {
  at::Tensor tensor;   ///< same shape and dtype as the parameter
  bool fresh = false;  ///< true: overwrite all of the (undefined) bytes; false: add to them
  /// What the backward function returns as the parameter's gradient: undefined if `tensor` is its
  /// `.grad`, else `tensor`.
  at::Tensor to_autograd = {};
};

/// Whether autograd itself has to have the gradient of `parameter`, as a tensor of its own: the
/// program has hooks that see it (has_gradient_hooks() of parameters.hpp), or it is no leaf.
bool goes_to_autograd(const at::Tensor& parameter);

/// Returns the destination of `parameter` for the use whose backward is running.
///
/// If `.grad` is defined, it is the destination, to be added to. Otherwise the destination is fresh
/// and becomes `.grad`: the tensor from the parameter's gradient provider if it has one, else a new
/// contiguous tensor, charged to memory::Category::kGradients. If the gradient goes_to_autograd(),
/// the destination is a new tensor. Autograd then adds up those of all uses, calls the program's
/// hooks once with the sum, and adds what they return to `.grad`. Call it only if a gradient is
/// written, once for each use of the parameter, inside a backward function that returns
/// `to_autograd` for the parameter; hooks set with on_gradient_ready() (parameters.hpp) then fire
/// as usual, after the last use.
GradientDestination gradient_destination(const at::Tensor& parameter);

/// Returns the tensor for a fresh gradient: the same shape, dtype and device as the parameter, and
/// not read by other code until the gradient is ready. It is called on the thread that runs
/// backward, at the first use in each backward that finds `.grad` undefined, and may block.
using GradientProvider = std::function<at::Tensor()>;

/// Makes `provider` the source of fresh gradients of `parameter`, in place of an earlier one; an
/// empty function removes it. Parameters are identified by tensor, not by name, and are not kept
/// alive; later calls drop providers of parameters that are gone. May be called on any thread, but
/// not while a backward pass uses the parameter.
///
/// Only the functions of functional.hpp use destinations. A module that uses ordinary autograd
/// operations on the parameter never calls the provider: autograd makes its gradient.
void set_gradient_provider(const at::Tensor& parameter, GradientProvider provider);

}  // namespace zero::nn
