#pragma once

#include <torch/types.h>

#include <vector>

namespace zero::optim {

/// Sum of the squares of all elements, added in double in one fixed order. Float and half types.
double squared_norm(const at::Tensor& tensor);

/// squared_norm() of each tensor. Tensors of one device, of float and half types. On a GPU a few
/// kernels add up all tensors together, in double but in another order, and the host waits once, to
/// read one tensor.
std::vector<double> squared_norms(const std::vector<at::Tensor>& tensors);

/// The largest absolute value of an element of each tensor, exact; 0 for a tensor without elements,
/// NaN if one is NaN. Types, devices and waits as in squared_norms().
std::vector<double> largest_magnitudes(const std::vector<at::Tensor>& tensors);

/// The L2 norm of a gradient whose parts have these squared norms, in double. They are added as a
/// WideSum, so that their order does not count. A caller that needs a float rounds it once.
double norm_from_squares(const std::vector<double>& squares);

/// The factor that limits the norm to `max_norm`: 1 if it is within the limit, max_norm / (norm +
/// 1e-6) otherwise (as torch.nn.utils.clip_grad_norm_). Computed once, in float.
float clip_coefficient(float norm, double max_norm);
/// The same in double, for a model with parameters of double.
double clip_coefficient(double norm, double max_norm);

namespace detail {

/// What a GPU does: the norms of this order (2 or infinity) of all tensors, by a list operation of
/// LibTorch. `more` [n]: values of their device that are read with them, and stand behind them.
std::vector<double> norms_by_list(const std::vector<at::Tensor>& tensors, double order,
                                  const at::Tensor& more = {});

}  // namespace detail

}  // namespace zero::optim
