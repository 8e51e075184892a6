#pragma once

// Private to common/zero/distributed: sums on devices, such as GPUs, where they are operations.

#include <torch/types.h>

#include <vector>

namespace zero::dist {

/// sum_in_rank_order() of rank_order.hpp, bit for bit, for tensors on any device.
void sum_by_operations(const at::Tensor& output, const std::vector<at::Tensor>& inputs,
                       int divisor);

/// tensor /= divisor, with the rounding of a division on every device.
void divide(const at::Tensor& tensor, int divisor);

}  // namespace zero::dist
