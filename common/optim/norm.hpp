#pragma once

#include <torch/types.h>

#include <vector>

namespace zero::optim {

/// How long a gradient is said to be.
enum class Norm {
  kL2,        ///< root of the sum of squares
  kInfinity,  ///< largest absolute value of an element
};
/// "L2", "infinity".
const char* name(Norm norm);

/// Largest absolute value of an element, exact; 0 for a tensor without elements, NaN if one is NaN.
/// Float and half types.
float largest_magnitude(const at::Tensor& tensor);

/// Sum of the squares of all elements, added in double in one fixed order. Float and half types.
double squared_norm(const at::Tensor& tensor);

/// The L2 norm of a gradient whose parts have these squared norms (in parameter order, the same on
/// all ranks): the sum in double, its root rounded once to float.
float norm_from_squares(const std::vector<double>& squares);

/// What every gradient is multiplied by so that the norm is at most `max_norm`: 1 where it already
/// is, max_norm / (norm + 1e-6) otherwise (as torch.nn.utils.clip_grad_norm_). Computed once, in
/// float.
float clip_coefficient(float norm, double max_norm);

}  // namespace zero::optim
