#include "quantize.hpp"

#include <c10/util/BFloat16.h>
#include <c10/util/Exception.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "quantize_by_operations.hpp"

namespace zero::quantization {
namespace {

// Compiles a function twice; the processor takes the one with vectors of eight floats if it can.
// The bits are the same: each element has the same operations, and none are fused.
#if defined(__x86_64__)
#define ZERO_WITH_AVX2 __attribute__((target_clones("default", "avx2"), flatten))
#else
#define ZERO_WITH_AVX2
#endif

// A sum with it is rounded to a whole number, which is then in the low bits of the sum. Unlike
// std::nearbyint, this is made of instructions that every x86-64 has for vectors.
constexpr float kRounder = 0x1.8p23F;

// Without their signs, floats are ordered as their bits are as integers, and infinities and NaN
// come last. The largest of integers may be found in any order, and so with vectors.
template <typename T>
float largest_magnitude(const T* values, std::int64_t length) {
  std::int32_t largest = 0;
  for (std::int64_t i = 0; i < length; ++i) {
    const auto bits = std::bit_cast<std::int32_t>(static_cast<float>(values[i]));
    largest = std::max(largest, bits & std::numeric_limits<std::int32_t>::max());
  }
  return std::bit_cast<float>(largest);
}

float scale_of(float magnitude, const Format& format) {
  if (!std::isfinite(magnitude)) return std::numeric_limits<float>::quiet_NaN();
  const float largest = static_cast<float>(format.largest());
  return std::max(std::min(magnitude, kLargestMagnitude) / largest, kSmallestScale);
}

// q in the low bits.
template <typename T>
std::uint32_t rounded(T value, float scale) {
  return std::bit_cast<std::uint32_t>(static_cast<float>(value) / scale + kRounder);
}

// A byte for each element; the lowest 4 bits are those of kBits = 4.
template <typename T>
void quantize_bytes(const T* values, std::int64_t length, float scale, std::uint8_t* q) {
  for (std::int64_t i = 0; i < length; ++i) {
    q[i] = static_cast<std::uint8_t>(rounded(values[i], scale));
  }
}

template <int kBits, typename T>
void quantize_block(const T* values, std::int64_t length, float scale, std::uint8_t* payload) {
  constexpr std::int64_t kPart = 256, kCacheLine = 64 / sizeof(T);  // elements
  std::array<std::uint8_t, kPart + 1> q{};
  for (std::int64_t begin = 0; begin < length; begin += kPart) {
    const std::int64_t n = std::min(kPart, length - begin);
    // The next block comes from memory while this one, which is in the cache, is divided.
    for (std::int64_t i = begin; i < begin + n; i += kCacheLine) {
      __builtin_prefetch(values + length + i);
    }
    if constexpr (kBits == 8) {
      quantize_bytes(values + begin, n, scale, payload + begin);
    } else {
      // In two loops, each of which can use vectors.
      quantize_bytes(values + begin, n, scale, q.data());
      q[static_cast<std::size_t>(n)] = 0;  // the second of a pair, if n is odd
      for (std::int64_t i = 0; i < (n + 1) / 2; ++i) {
        std::uint16_t pair = 0;
        std::memcpy(&pair, q.data() + 2 * i, sizeof(pair));
        payload[begin / 2 + i] = static_cast<std::uint8_t>((pair & 15) | (pair >> 4 & 0xF0));
      }
    }
  }
}

// out = value, or with kAdd out += value.
template <bool kAdd, typename T>
void put(T& out, float value) {
  out = static_cast<T>(kAdd ? static_cast<float>(out) + value : value);
}

template <int kBits, bool kAdd, typename T>
void dequantize_block(const std::uint8_t* payload, std::int64_t length, float scale, T* out) {
  if constexpr (kBits == 8) {
    for (std::int64_t i = 0; i < length; ++i) {
      put<kAdd>(out[i], scale * static_cast<float>(static_cast<std::int8_t>(payload[i])));
    }
  } else {
    // Half a byte is moved to the top and back, which copies its sign.
    const auto low = [&](std::int64_t i) {
      return scale * static_cast<float>(static_cast<std::int8_t>(payload[i] << 4) >> 4);
    };
    const auto high = [&](std::int64_t i) {
      return scale * static_cast<float>(static_cast<std::int8_t>(payload[i]) >> 4);
    };
    for (std::int64_t i = 0; i < length / 2; ++i) {
      put<kAdd>(out[2 * i], low(i));
      put<kAdd>(out[2 * i + 1], high(i));
    }
    if (length % 2 != 0) put<kAdd>(out[length - 1], low(length / 2));
  }
}

template <int kBits, typename T>
ZERO_WITH_AVX2 bool quantize_all(const T* values, const BlockLayout& layout, std::uint8_t* packed) {
  bool finite = true;
  for (const BlockLayout::Run& run : layout.runs()) {
    for (std::int64_t b = 0; b < run.blocks; ++b) {
      const T* const block = values + run.begin + b * run.length;
      std::uint8_t* const payload = packed + run.payload + b * run.block_bytes;
      const float scale = scale_of(largest_magnitude(block, run.length), layout.format());
      std::memcpy(packed + 4 * (run.first_block + b), &scale, sizeof(scale));
      if (std::isnan(scale)) {
        finite = false;
        std::memset(payload, 0, static_cast<std::size_t>(run.block_bytes));
      } else {
        quantize_block<kBits>(block, run.length, scale, payload);
      }
    }
  }
  return finite;
}

template <int kBits, bool kAdd, typename T>
ZERO_WITH_AVX2 void dequantize_all(const std::uint8_t* packed, const BlockLayout& layout, T* out) {
  for (const BlockLayout::Run& run : layout.runs()) {
    for (std::int64_t b = 0; b < run.blocks; ++b) {
      float scale = 0;
      std::memcpy(&scale, packed + 4 * (run.first_block + b), sizeof(scale));
      dequantize_block<kBits, kAdd>(packed + run.payload + b * run.block_bytes, run.length, scale,
                                    out + run.begin + b * run.length);
    }
  }
}

// Calls `function` with a value of the C++ type of `dtype`.
template <typename Function>
auto with_type(at::ScalarType dtype, const Function& function) {
  if (dtype == at::kBFloat16) return function(c10::BFloat16{});
  if (dtype == at::kHalf) return function(c10::Half{});
  TORCH_INTERNAL_ASSERT(dtype == at::kFloat);
  return function(float{});
}

// `other`: the values, or where they go.
void require_fit(const at::Tensor& packed, const BlockLayout& layout, const at::Tensor& other) {
  const auto fits = [](const at::Tensor& tensor, std::int64_t elements) {
    return tensor.defined() && tensor.is_contiguous() && tensor.numel() == elements;
  };
  TORCH_INTERNAL_ASSERT(fits(packed, layout.packed_bytes()) && fits(other, layout.elements()) &&
                            packed.scalar_type() == at::kByte && other.is_floating_point() &&
                            packed.device() == other.device(),
                        "quantized tensors must be those of their layout");
}

template <bool kAdd, typename T>
void dequantize_on_cpu(const at::Tensor& packed, const BlockLayout& layout, const at::Tensor& out) {
  const std::uint8_t* const from = packed.const_data_ptr<std::uint8_t>();
  T* const to = out.mutable_data_ptr<T>();
  layout.format().bits == 8 ? dequantize_all<8, kAdd>(from, layout, to)
                            : dequantize_all<4, kAdd>(from, layout, to);
}

}  // namespace

bool quantize(const at::Tensor& values, const BlockLayout& layout, const at::Tensor& packed) {
  require_fit(packed, layout, values);
  if (!values.is_cpu()) {
    quantize_by_operations(values, layout, packed);
    return true;
  }
  std::uint8_t* const to = packed.mutable_data_ptr<std::uint8_t>();
  return with_type(values.scalar_type(), [&](auto type) {
    const auto* const from = values.const_data_ptr<decltype(type)>();
    return layout.format().bits == 8 ? quantize_all<8>(from, layout, to)
                                     : quantize_all<4>(from, layout, to);
  });
}

void dequantize(const at::Tensor& packed, const BlockLayout& layout, const at::Tensor& out) {
  require_fit(packed, layout, out);
  if (!out.is_cpu()) return dequantize_by_operations(packed, layout, out, /*add=*/false);
  with_type(out.scalar_type(), [&](auto type) {
    dequantize_on_cpu</*kAdd=*/false, decltype(type)>(packed, layout, out);
  });
}

void dequantize_and_add(const at::Tensor& packed, const BlockLayout& layout,
                        const at::Tensor& sum) {
  require_fit(packed, layout, sum);
  if (!sum.is_cpu()) return dequantize_by_operations(packed, layout, sum, /*add=*/true);
  dequantize_on_cpu</*kAdd=*/true, float>(packed, layout, sum);
}

}  // namespace zero::quantization
