#pragma once

#include <ATen/core/Tensor.h>

namespace zero::nn {

/// The dtype to compute in: float32 for types of 2 bytes, else the tensor's own.
inline at::ScalarType wide(const at::Tensor& x) {
  return at::isReducedFloatingType(x.scalar_type()) ? at::kFloat : x.scalar_type();
}

}  // namespace zero::nn
