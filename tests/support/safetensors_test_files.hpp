#pragma once

#include <ATen/ops/randn.h>

#include <cstring>
#include <string>
#include <vector>

#include <zero/safetensors/safetensors.hpp>

#include "error_of.hpp"
#include "test_folder.hpp"

/// Helpers of the tests of safetensors; nothing else includes this.
namespace zero::testing {

/// A file by hand: the length of `header`, the header, the data.
inline std::string hand_made(const std::string& header, const std::string& data) {
  const std::uint64_t length = header.size();
  std::string bytes(sizeof(length), '\0');
  std::memcpy(bytes.data(), &length, sizeof(length));
  return bytes + header + data;
}

/// Same shape, dtype and bits: NaN equals itself here, and -0 differs from 0.
inline bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) return false;
  const at::Tensor x = a.detach().contiguous(), y = b.detach().contiguous();
  return x.nbytes() == 0 || std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}

/// Values of every dtype that the format knows: from all bits of a random source.
inline at::Tensor some_values(at::IntArrayRef shape, at::ScalarType dtype) {
  return dtype == at::kBool ? at::randn(shape).gt(0) : (at::randn(shape) * 50).to(dtype);
}

inline const std::vector<at::ScalarType> kAllDtypes = {
    at::kDouble, at::kFloat, at::kHalf,   at::kBFloat16, at::kLong, at::kInt,
    at::kShort,  at::kChar,  at::kUInt16, at::kByte,     at::kBool};

inline const std::vector<at::ScalarType> kFloatDtypes = {at::kDouble, at::kFloat, at::kHalf,
                                                         at::kBFloat16};

}  // namespace zero::testing
