#pragma once

#include <torch/types.h>

#include "block_layout.hpp"

namespace zero::quantization {

/// quantize() of quantize.hpp, bit for bit, for tensors on any device, made of LibTorch's
/// operations, without an answer: the host would wait for it. Does not check its tensors. Scratch:
/// some 13 bytes an element of the longest run.
void quantize_by_operations(const at::Tensor& values, const BlockLayout& layout,
                            const at::Tensor& packed);

/// dequantize(), or with `add` dequantize_and_add(), in the same way.
void dequantize_by_operations(const at::Tensor& packed, const BlockLayout& layout,
                              const at::Tensor& out, bool add);

}  // namespace zero::quantization
