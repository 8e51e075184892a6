#include "07b.hpp"

using exercise_07b::Quantized;

Quantized quantize(const at::Tensor& values, std::int64_t block, int bits) { return {}; }

at::Tensor dequantize(const Quantized& quantized, std::int64_t block) { return {}; }

at::Tensor pack(const at::Tensor& numbers) { return {}; }

at::Tensor unpack(const at::Tensor& packed, std::int64_t count) { return {}; }

at::Tensor gather(zero::dist::Communicator& ranks, const at::Tensor& shard, std::int64_t block) {
  return {};
}
