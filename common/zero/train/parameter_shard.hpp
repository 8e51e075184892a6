#pragma once

#include <torch/types.h>

#include <cstdint>

namespace zero::train {

/// Consecutive elements of one parameter.
struct ParameterShard {
  /// The elements as the tensor that the optimizer updates; after finish_backward() its `.grad` is
  /// their averaged gradient. Undefined if this rank has none of the parameter.
  at::Tensor tensor;
  std::int64_t begin = 0;  ///< index of the first in the flattened parameter
};

}  // namespace zero::train
