#pragma once

#include <torch/types.h>

#include "block_layout.hpp"

/// Quantized values of a BlockLayout, such as the parameters that qwZ of ZeRO++ gathers and the
/// gradients that its qgZ exchanges. A rank calls these functions by itself. They use one thread on
/// the CPU, and block. All tensors of a call are contiguous, of any shape, and on one device.
/// `packed` is uint8 of layout.packed_bytes() elements, at any address.
///
/// The same values have the same bytes on every machine, on a GPU as well, because each operation
/// is one of IEEE 754: scale = largest magnitude / largest q (at least kSmallestScale), q = value /
/// scale, rounded to the nearest whole number and ties to even. Values that are 16 bits long are
/// widened first. An element differs from its original by at most half a scale plus rounding
/// (0.5001 scales in all). A block of numbers k * scale, with whole k of which the largest is
/// largest q, is exact. Every zero becomes +0.
///
/// If values are dequantized into their original dtype and quantized again, the bytes are the same.
/// So a rank can replace its values by the dequantized ones, which other ranks get, and quantize
/// them as often as needed.
namespace zero::quantization {

/// Fills `packed` from `values` (float32, bfloat16 or float16, layout.elements()). Returns false if
/// a value is infinite or NaN: the scale of its block is NaN, and so are all elements of that
/// block. On a device the host does not wait, and the answer is true.
bool quantize(const at::Tensor& values, const BlockLayout& layout, const at::Tensor& packed);

/// Fills `out` (float32, bfloat16 or float16, layout.elements()): scale * q, rounded to its dtype.
void dequantize(const at::Tensor& packed, const BlockLayout& layout, const at::Tensor& out);

/// Adds scale * q, rounded to float32, to each element of `sum` (float32, layout.elements()).
void dequantize_and_add(const at::Tensor& packed, const BlockLayout& layout, const at::Tensor& sum);

}  // namespace zero::quantization
