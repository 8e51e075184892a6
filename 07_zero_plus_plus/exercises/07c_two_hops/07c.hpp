#pragma once

#include <torch/types.h>

#include <cfloat>
#include <cstdint>

#include <zero/distributed/communicator.hpp>

/// qgZ: gradients are averaged in 4 bits, in two hops. R hosts have S ranks each: rank = host * S +
/// place.
namespace exercise_07c {

inline constexpr std::int64_t kBlock = 16;  // elements that share a scale

struct Mesh {
  zero::dist::Communicator& world;   ///< all R S ranks
  zero::dist::Communicator& group;   ///< the S ranks of this host, by place
  zero::dist::Communicator& across;  ///< the R ranks that have this rank's place, by host
};

/// Values in 4 bits: two whole numbers from -7 to 7 in a byte, each 8 more than it is, and a scale
/// for each block. Value = number times scale.
struct Quantized {
  at::Tensor bytes;   ///< uint8, half as many as there are values
  at::Tensor scales;  ///< float32
};

/// `values`: float32, contiguous, a multiple of kBlock elements. Each is rounded to 4 bits.
inline Quantized quantize(const at::Tensor& values) {
  const at::Tensor rows = values.reshape({-1, kBlock});
  const at::Tensor scales = (rows.abs().amax(1, /*keepdim=*/true) / 7).clamp_min(FLT_MIN);
  const at::Tensor numbers = ((rows / scales).round() + 8).to(at::kByte).view({-1, 2});
  return {numbers.select(1, 0) + numbers.select(1, 1) * 16, scales.flatten()};
}

/// Returns float32, flat.
inline at::Tensor dequantize(const Quantized& quantized) {
  const at::Tensor& bytes = quantized.bytes;
  const at::Tensor numbers =
      at::stack({bytes.bitwise_and(15), bytes.bitwise_right_shift(4)}, 1).to(at::kFloat) - 8;
  return (numbers.view({-1, kBlock}) * quantized.scales.view({-1, 1})).flatten();
}

/// What an answer consists of.
struct Answer {
  /// Returns this rank's shard of the average of `gradient` over all ranks: piece world.rank() of N
  /// equal ones of the flattened tensor. `gradient`: float32, contiguous, of one dimension or two;
  /// with two a shard is a multiple of kBlock elements. Called by all ranks; blocks.
  at::Tensor (*average)(Mesh mesh, const at::Tensor& gradient);
};

}  // namespace exercise_07c
