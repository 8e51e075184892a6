#pragma once

#include <torch/types.h>

#include <vector>

namespace zero::optim {

/// Ways to measure the length of a gradient.
enum class Norm {
  kL1,        ///< sum of the absolute values
  kL2,        ///< root of the sum of squares
  kInfinity,  ///< largest absolute value of an element
};
/// "L1", "L2", "infinity".
const char* name(Norm norm);

/// Largest absolute value of an element, exact; 0 for a tensor without elements, NaN if one is NaN.
/// Float and half types.
double largest_magnitude(const at::Tensor& tensor);

/// Sum of the squares of all elements, added in double in one fixed order. Float and half types.
double squared_norm(const at::Tensor& tensor);

/// What each tensor contributes to a norm: squared_norm(), the sum of its absolute values added in
/// the same way, or largest_magnitude(). Tensors of one device, of float and half types. On a GPU a
/// few kernels compute the sums of all tensors together, and the host waits once, to read one
/// tensor.
std::vector<double> contributions(Norm norm, const std::vector<at::Tensor>& tensors);

/// The L2 norm of a gradient whose parts have these squared norms (in parameter order, the same on
/// all ranks), in double: round it once where it is to be a float.
double norm_from_squares(const std::vector<double>& squares);

/// The same for the L1 norm and absolute sums: their sum in double.
double norm_from_absolute_sums(const std::vector<double>& sums);

/// The factor that limits the norm to `max_norm`: 1 if it is within the limit, max_norm / (norm +
/// 1e-6) otherwise (as torch.nn.utils.clip_grad_norm_). Computed once, in float.
float clip_coefficient(float norm, double max_norm);
/// The same in double, for a model with parameters of double.
double clip_coefficient(double norm, double max_norm);

namespace detail {

/// The version of contributions() for a GPU. The sums are in double, but not in the CPU's order.
std::vector<double> contributions_by_lists(Norm norm, const std::vector<at::Tensor>& tensors);

}  // namespace detail

}  // namespace zero::optim
