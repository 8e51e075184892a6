#pragma once

#include <torch/types.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdint>

#include <zero/distributed/communicator.hpp>

namespace exercise_07b {

/// Values in few bits. Value i is about numbers[i] * scales[i / block].
struct Quantized {
  at::Tensor numbers;  ///< int8, one for each value
  at::Tensor scales;   ///< float32, one for each block; the last block may be shorter
};

/// What an answer consists of.
struct Answer {
  /// Returns `values`, n of float32, as whole numbers and scales. `bits` is 8 or 4: the numbers are
  /// from -127 to 127 or from -7 to 7.
  Quantized (*quantize)(const at::Tensor& values, std::int64_t block, int bits);
  /// Returns n values of float32: each number times the scale of its block.
  at::Tensor (*dequantize)(const Quantized& quantized, std::int64_t block);
  /// Returns n numbers from -8 to 7 (int8) as (n + 1) / 2 bytes (uint8), two in each: the first of
  /// them in the low four bits. Four bits hold a negative number as 16 more than it: -1 is 15.
  at::Tensor (*pack)(const at::Tensor& numbers);
  /// Returns the `count` numbers that pack() has packed, as int8.
  at::Tensor (*unpack)(const at::Tensor& packed, std::int64_t count);
  /// Returns the weight that all ranks compute with, float32: shards of all ranks one after the
  /// other, as 8 bits of each element and a scale of each block bring them. `shard`: this rank's,
  /// flat, whole blocks, as long as the other ranks'; stays as it is. Called by all ranks; blocks.
  at::Tensor (*gather)(zero::dist::Communicator& ranks, const at::Tensor& shard,
                       std::int64_t block);
};

}  // namespace exercise_07b
