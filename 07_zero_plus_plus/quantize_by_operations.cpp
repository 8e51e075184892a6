#include "quantize_by_operations.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>

#include <limits>

namespace zero::quantization {
namespace {

// The numbers q of a run, as they are packed: a row for each block.
at::Tensor payload_of(const BlockLayout::Run& run, const at::Tensor& bytes) {
  return bytes.narrow(0, run.payload, run.blocks * run.block_bytes)
      .view({run.blocks, run.block_bytes});
}

at::Tensor elements_of(const BlockLayout::Run& run, const at::Tensor& flat) {
  return flat.narrow(0, run.begin, run.blocks * run.length).view({run.blocks, run.length});
}

// Two columns of q become one. The first is in the low half of a byte, of which it keeps 4 bits; 16
// times the second is in the high half.
at::Tensor pack_pairs(const at::Tensor& q) {
  const at::Tensor pairs = at::constant_pad_nd(q, {0, q.size(1) % 2}).view({q.size(0), -1, 2});
  return pairs.select(2, 0).bitwise_and(15).bitwise_or(pairs.select(2, 1).mul(16));
}

// The inverse, as float32. Both halves are moved to the high half of a byte, so that the sign of q
// is that of the int8. There q is 16 times what it is.
at::Tensor unpack_pairs(const at::Tensor& payload, std::int64_t length) {
  const at::Tensor pairs = at::stack({payload.mul(16), payload.bitwise_and(0xF0)}, 2);
  const at::Tensor q = pairs.view(at::kChar).to(at::kFloat).mul_(1.0 / 16);
  return q.view({payload.size(0), -1}).narrow(1, 0, length);
}

}  // namespace

void quantize_by_operations(const at::Tensor& values, const BlockLayout& layout,
                            const at::Tensor& packed) {
  const at::NoGradGuard no_grad;
  const at::Tensor flat = values.view(-1), bytes = packed.view(-1);
  const at::TensorOptions options = values.options().dtype(at::kFloat).requires_grad(false);
  // A tensor, not a number: for a number the GPU's kernel multiplies by its reciprocal.
  const at::Tensor largest_q = at::full({}, layout.format().largest(), options);
  for (const BlockLayout::Run& run : layout.runs()) {
    const at::Tensor blocks = elements_of(run, flat).to(at::kFloat);
    const at::Tensor magnitude = blocks.abs().amax(1, /*keepdim=*/true);
    const at::Tensor finite = magnitude.isfinite();
    // A block of zeros has a scale too. One that is not finite has NaN, which all its elements get.
    const at::Tensor scale =
        magnitude.clamp_max(kLargestMagnitude)
            .div_(largest_q)
            .clamp_min_(kSmallestScale)
            .masked_fill_(finite.logical_not(), std::numeric_limits<float>::quiet_NaN());
    // round_() takes ties to even. An integer cannot be NaN: the scale already is.
    const at::Tensor q = blocks.div(scale).round_().nan_to_num_(0).to(at::kChar).view(at::kByte);
    payload_of(run, bytes).copy_(layout.format().bits == 4 ? pack_pairs(q) : q);
    bytes.narrow(0, 4 * run.first_block, 4 * run.blocks).copy_(scale.view(-1).view(at::kByte));
  }
}

void dequantize_by_operations(const at::Tensor& packed, const BlockLayout& layout,
                              const at::Tensor& out, bool add) {
  const at::NoGradGuard no_grad;
  const at::Tensor flat = out.view(-1), bytes = packed.view(-1);
  // A copy, because packed bytes may lie at any address.
  const at::Tensor scales = bytes.narrow(0, 0, 4 * layout.blocks()).clone().view(at::kFloat);
  for (const BlockLayout::Run& run : layout.runs()) {
    const at::Tensor payload = payload_of(run, bytes);
    const at::Tensor q = layout.format().bits == 4 ? unpack_pairs(payload, run.length)
                                                   : payload.view(at::kChar).to(at::kFloat);
    const at::Tensor values = q.mul(scales.narrow(0, run.first_block, run.blocks).unsqueeze(1));
    const at::Tensor elements = elements_of(run, flat);
    add ? elements.add_(values) : elements.copy_(values);
  }
}

}  // namespace zero::quantization
