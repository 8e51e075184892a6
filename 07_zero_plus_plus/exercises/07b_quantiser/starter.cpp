#include "07b.hpp"

using exercise_07b::Quantised;

Quantised quantise(const at::Tensor& values, std::int64_t block, int bits) { return {}; }

at::Tensor dequantise(const Quantised& quantised, std::int64_t block) { return {}; }

at::Tensor pack(const at::Tensor& numbers) { return {}; }

at::Tensor unpack(const at::Tensor& packed, std::int64_t count) { return {}; }
