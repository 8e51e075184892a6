#pragma once

#include <torch/types.h>

#include <cstdint>

namespace zero::train {

/// Consecutive elements of one parameter.
struct ParameterShard {
  /// The elements as the optimizer knows them; its `.grad`, after finish_backward(), is their
  /// averaged gradient. Undefined where this rank has none of the parameter.
  at::Tensor tensor;
  std::int64_t begin = 0;  ///< the first of them in the flattened parameter
};

}  // namespace zero::train
