// Quantized values: their bytes, how far they are from the originals, and that the same values have
// the same bytes however they are quantized.

#include "quantize.hpp"

#include <ATen/Context.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include <tests/support/tensors.hpp>

#include "quantize_by_operations.hpp"

namespace zero::quantization {
namespace {

using testing::random;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kLargest = std::numeric_limits<float>::max();
constexpr float kDenormal = std::numeric_limits<float>::denorm_min();
const std::vector<at::ScalarType> kDtypes = {at::kFloat, at::kBFloat16, at::kHalf};

at::Tensor packed_of(const at::Tensor& values, const BlockLayout& layout, bool finite = true) {
  // Not zeros: every byte must be written.
  const at::Tensor packed = at::full({layout.packed_bytes()}, 0xA5, at::kByte);
  EXPECT_EQ(quantize(values, layout, packed), finite);
  return packed;
}

at::Tensor values_of(const at::Tensor& packed, const BlockLayout& layout,
                     at::ScalarType dtype = at::kFloat) {
  const at::Tensor out = at::full({layout.elements()}, 77, dtype);
  dequantize(packed, layout, out);
  return out;
}

std::vector<float> floats_of(const at::Tensor& tensor) {
  const at::Tensor wide = tensor.to(at::kFloat).contiguous();
  const float* const begin = wide.const_data_ptr<float>();
  return {begin, begin + wide.numel()};
}

// To the last bit: zeros have a sign.
bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  const auto bits = a.element_size() == 2 ? at::kShort : at::kInt;
  return a.scalar_type() == b.scalar_type() && at::equal(a.view(bits), b.view(bits));
}

// The definition, element by element: bytes of one segment, and what they mean.
struct Reference {
  std::vector<std::uint8_t> bytes;
  std::vector<float> values, scales;  // an entry for each element

  Reference(const std::vector<float>& originals, Format format) {
    std::vector<std::uint8_t> payload;
    const auto block = static_cast<std::size_t>(format.block);
    const float most = format.bits == 8 ? 127 : 7;
    for (std::size_t begin = 0; begin < originals.size(); begin += block) {
      const std::size_t end = std::min(originals.size(), begin + block);
      float magnitude = 0;
      for (std::size_t i = begin; i < end; ++i) {
        magnitude = std::fmax(magnitude, std::fabs(originals[i]));
      }
      const float scale =
          std::fmax(std::fmin(magnitude, std::nextafter(kLargest, 0.0F)) / most, 0x1p-125F);
      bytes.resize(bytes.size() + 4);
      std::memcpy(bytes.data() + bytes.size() - 4, &scale, 4);
      for (std::size_t i = begin; i < end; ++i) {
        const float q = std::nearbyint(originals[i] / scale);
        const auto code = static_cast<std::uint8_t>(static_cast<int>(q));
        if (format.bits == 8) {
          payload.push_back(code);
        } else if ((i - begin) % 2 == 0) {
          payload.push_back(code & 15);
        } else {
          payload.back() = static_cast<std::uint8_t>(payload.back() + code % 16 * 16);
        }
        values.push_back(scale * q + 0.0F);  // -0 becomes +0
        scales.push_back(scale);
      }
    }
    bytes.insert(bytes.end(), payload.begin(), payload.end());
  }
};

at::Tensor bytes_tensor(const std::vector<std::uint8_t>& bytes) {
  return at::tensor(at::ArrayRef<std::uint8_t>(bytes), at::kByte);
}

// Everything that holds for finite values: exact bytes and values, the bound, idempotence, and that
// LibTorch's operations have the same bits.
void check_segment(const at::Tensor& values, Format format) {
  const BlockLayout layout({values.numel()}, format);
  const std::vector<float> originals = floats_of(values);
  const Reference reference(originals, format);
  const at::Tensor packed = packed_of(values, layout);
  ASSERT_TRUE(at::equal(packed, bytes_tensor(reference.bytes)));
  const at::Tensor out = values_of(packed, layout);
  ASSERT_TRUE(same_bits(out, at::tensor(at::ArrayRef<float>(reference.values))));
  for (std::size_t i = 0; i < originals.size(); ++i) {
    const double error = std::fabs(double{originals[i]} - double{reference.values[i]});
    ASSERT_LE(error, 0.5001 * reference.scales[i]) << i << ": " << originals[i];
  }
  for (const at::ScalarType dtype : kDtypes) {
    const at::Tensor rounded = values_of(packed, layout, dtype);
    ASSERT_TRUE(same_bits(rounded, out.to(dtype)));
    if (dtype == values.scalar_type()) {
      ASSERT_TRUE(at::equal(packed_of(rounded, layout), packed)) << "not idempotent";
    }
    const at::Tensor theirs = at::full_like(rounded, 5);
    dequantize_by_operations(packed, layout, theirs, /*add=*/false);
    ASSERT_TRUE(same_bits(theirs, rounded));
  }
  const at::Tensor theirs = at::full_like(packed, 0x5A);
  quantize_by_operations(values, layout, theirs);
  ASSERT_TRUE(at::equal(theirs, packed));
}

class Quantize : public ::testing::TestWithParam<int> {
 protected:
  Format format(std::int64_t block = 2048) const { return {.bits = GetParam(), .block = block}; }
};
INSTANTIATE_TEST_SUITE_P(Bits, Quantize, ::testing::Values(8, 4),
                         [](const auto& info) { return fmt::format("Int{}", info.param); });

TEST(QuantizeBytes, OfEightBitsAreScalesAndSignedBytes) {
  const BlockLayout layout({7, 2}, {.bits = 8, .block = 4});
  // The first block has scale 0.5, and ties; the second 1, the third (a segment of its own) 2.
  const at::Tensor values =
      at::tensor({63.5F, -63.5F, 0.25F, 0.75F, -127.0F, -1.0F, -0.0F, 254.0F, -3.0F});
  const std::vector<std::uint8_t> expected = {0,    0,    0,    0x3F, 0,    0,    0x80,
                                              0x3F, 0,    0,    0,    0x40, 0x7F, 0x81,
                                              0x00, 0x02, 0x81, 0xFF, 0x00, 0x7F, 0xFE};
  EXPECT_TRUE(at::equal(packed_of(values, layout), bytes_tensor(expected)));
  const at::Tensor out = values_of(bytes_tensor(expected), layout);
  EXPECT_TRUE(
      at::equal(out, at::tensor({63.5F, -63.5F, 0.0F, 1.0F, -127.0F, -1.0F, 0.0F, 254.0F, -4.0F})));
}

TEST(QuantizeBytes, OfFourBitsAreTwoElementsEach) {
  const BlockLayout layout({7, 1}, {.bits = 4, .block = 4});
  // Scales 2, 1 and 0.5.
  const at::Tensor values = at::tensor({14.0F, -14.0F, 1.0F, 3.0F, -7.0F, -2.5F, -1.0F, -3.5F});
  const std::vector<std::uint8_t> expected = {0, 0, 0,    0x40, 0,    0,    0x80, 0x3F, 0,
                                              0, 0, 0x3F, 0x97, 0x20, 0xE9, 0x0F, 0x09};
  EXPECT_TRUE(at::equal(packed_of(values, layout), bytes_tensor(expected)));
  const at::Tensor out = values_of(bytes_tensor(expected), layout);
  EXPECT_TRUE(at::equal(out, at::tensor({14.0F, -14.0F, 0.0F, 4.0F, -7.0F, -2.0F, -1.0F, -3.5F})));
}

TEST_P(Quantize, EveryLengthHasTheBytesOfTheDefinition) {
  for (const at::ScalarType dtype : kDtypes) {
    // Values begin at every alignment.
    const at::Tensor all = random({5016}, 1, false, at::kFloat).to(dtype);
    for (std::int64_t n = 1; n <= 5000; ++n) {
      const at::Tensor values = all.narrow(0, n % 16, n);
      const Reference reference(floats_of(values), format());
      const BlockLayout layout({n}, format());
      const at::Tensor packed = packed_of(values, layout);
      ASSERT_TRUE(at::equal(packed, bytes_tensor(reference.bytes))) << n << " of " << dtype;
      const at::Tensor expected = at::tensor(at::ArrayRef<float>(reference.values)).to(dtype);
      ASSERT_TRUE(same_bits(values_of(packed, layout, dtype), expected)) << n << " of " << dtype;
    }
  }
}

TEST_P(Quantize, ManySizesOfBlocksKeepBoundAndBits) {
  for (const at::ScalarType dtype : kDtypes) {
    for (const std::int64_t block : {2, 16, 34, 1000, 2048}) {
      for (const std::int64_t n : {1, 2, 15, 16, 33, 2047, 2048, 2049, 4999}) {
        SCOPED_TRACE(fmt::format("{} in blocks of {}, {}", n, block, c10::toString(dtype)));
        check_segment(random({n}, static_cast<std::uint64_t>(n), false, at::kFloat).to(dtype),
                      format(block));
      }
    }
  }
}

// Blocks where a simpler formula gives a zero, inexact or infinite scale, or rounds twice.
TEST_P(Quantize, AdversarialBlocksKeepBoundAndBits) {
  const auto ramp = at::linspace(-1, 1, 300, at::kFloat);
  const std::vector<std::pair<const char*, at::Tensor>> blocks = {
      {"zeros", at::zeros({300})},
      {"negative zeros", at::full({300}, -0.0F)},
      {"the smallest denormal", at::full({300}, kDenormal)},
      {"few denormals", at::arange(-150, 150) * kDenormal},
      {"denormals", ramp * 0x1p-127F},
      {"denormals and normals", ramp * 0x1p-124F},
      {"scales about the smallest", ramp * (127 * 0x1.000002p-125F)},
      {"the smallest scale", ramp * (127 * 0x1p-125F)},
      {"the largest float", ramp * kLargest},
      {"one below the largest float", ramp * std::nextafter(kLargest, 0.0F)},
      {"two below the largest float", ramp * 0x1.fffffap127F},
      {"one huge among tiny", at::cat({at::full({299}, 1e-30F), at::full({1}, -1e30F)})},
      {"all the largest", at::full({300}, -3.14159F)},
      {"ties of 8 bits", at::cat({at::full({1}, 127.0F), at::arange(-126, 126) + 0.5F})},
      {"ties of 4 bits", at::cat({at::full({1}, 7.0F), at::arange(-6, 6) + 0.5F})},
      {"nearly ties",
       at::cat({at::full({1}, 127.0F), at::full({300}, std::nextafter(0.5F, 0.0F))})},
      {"many magnitudes", ramp.pow(31) * 1e4F},
  };
  for (const at::ScalarType dtype : kDtypes) {
    for (const auto& [name, values] : blocks) {
      SCOPED_TRACE(fmt::format("{} as {}", name, c10::toString(dtype)));
      const at::Tensor rounded = values.to(dtype);
      if (!rounded.isfinite().all().item<bool>()) continue;
      check_segment(rounded, format());
      check_segment(rounded, format(20));
    }
  }
}

// With a scale for every mantissa: multiplying by an inverse fails here for some.
TEST_P(Quantize, TheScaleOfEveryFloatIsFoundAgain) {
  constexpr std::int64_t kChunk = 1 << 20;
  const BlockLayout layout({2 * kChunk}, format(2));
  for (std::int64_t begin = 0; begin < 1 << 23; begin += kChunk) {
    const at::Tensor bits = at::arange(begin, begin + kChunk, at::kInt) + 0x3F800000;
    const at::Tensor largest = bits.view(at::kFloat);
    const at::Tensor values = at::stack({largest, largest / 3}, 1);
    const at::Tensor packed = packed_of(values, layout);
    ASSERT_TRUE(at::equal(packed_of(values_of(packed, layout), layout), packed)) << begin;
  }
}

// Every finite number of 16 bits as the largest of a block of 256.
TEST_P(Quantize, EveryHalfBlockIsFoundAgain) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    const std::int64_t finite = dtype == at::kHalf ? 0x7C00 : 0x7F80;
    const at::Tensor largest = at::arange(0, finite, at::kShort).view(dtype).to(at::kFloat);
    const at::Tensor ramp = at::linspace(-1, 1, 256, at::kFloat);
    const at::Tensor values = (largest.unsqueeze(1) * ramp).to(dtype);
    const BlockLayout layout({values.numel()}, format(256));
    const at::Tensor packed = packed_of(values, layout);
    const at::Tensor rounded = values_of(packed, layout, dtype);
    ASSERT_TRUE(at::equal(packed_of(rounded, layout), packed)) << dtype;
  }
}

TEST_P(Quantize, SegmentsAreIndependent) {
  const std::vector<std::int64_t> lengths = {3, 0, 2049, 1, 16, 4097};
  std::vector<at::Tensor> parts, scales, payloads;
  for (const std::int64_t n : lengths) {
    const auto seed = static_cast<std::uint64_t>(n);
    parts.push_back(random({n}, seed, false, at::kFloat) * std::pow(10, n % 7));
    const BlockLayout alone({n}, format());
    const at::Tensor packed = packed_of(parts.back(), alone);
    scales.push_back(packed.narrow(0, 0, 4 * alone.blocks()));
    payloads.push_back(packed.narrow(0, 4 * alone.blocks(), packed.numel() - 4 * alone.blocks()));
  }
  const BlockLayout layout(lengths, format());
  const at::Tensor values = at::cat(parts),
                   expected = at::cat({at::cat(scales), at::cat(payloads)});
  EXPECT_TRUE(at::equal(packed_of(values, layout), expected));
  const at::Tensor theirs = at::full_like(expected, 0x5A);
  quantize_by_operations(values, layout, theirs);
  EXPECT_TRUE(at::equal(theirs, expected));
  std::vector<at::Tensor> separate;
  for (const at::Tensor& part : parts) {
    const BlockLayout alone({part.numel()}, format());
    separate.push_back(values_of(packed_of(part, alone), alone));
  }
  EXPECT_TRUE(same_bits(values_of(expected, layout), at::cat(separate)));
}

TEST_P(Quantize, AddsToWhatIsThere) {
  const BlockLayout layout({2049, 777}, format());
  const at::Tensor packed = packed_of(random({2826}, 1, false, at::kFloat), layout);
  const at::Tensor start = random({2826}, 2, false, at::kFloat);
  const at::Tensor expected = start + values_of(packed, layout);
  const at::Tensor sum = start.clone(), theirs = start.clone();
  dequantize_and_add(packed, layout, sum);
  EXPECT_TRUE(at::equal(sum, expected));
  dequantize_by_operations(packed, layout, theirs, /*add=*/true);
  EXPECT_TRUE(at::equal(theirs, expected));
}

TEST_P(Quantize, SaysThatAValueIsNotFiniteAndSpoilsItsBlockOnly) {
  const BlockLayout layout({100, 101}, format(40));  // blocks of 40, 40, 20, 40, 40, 21
  for (const at::ScalarType dtype : kDtypes) {
    const at::Tensor values = random({201}, 3, false, at::kFloat).to(dtype);
    const at::Tensor good = packed_of(values, layout), good_out = values_of(good, layout);
    for (const float bad : {kNaN, -kNaN, kInfinity, -kInfinity}) {
      for (const std::int64_t at : {40, 57, 79}) {
        const at::Tensor spoilt = values.clone();
        spoilt[at] = bad;
        const at::Tensor packed = packed_of(spoilt, layout, /*finite=*/false);
        const at::Tensor out = values_of(packed, layout), expected = good_out.clone();
        expected.narrow(0, 40, 40).fill_(kNaN);
        EXPECT_TRUE(same_bits(out.nan_to_num(1e9), expected.nan_to_num(1e9)))
            << bad << " at " << at;
        const at::Tensor theirs = at::full_like(packed, 0x5A);
        quantize_by_operations(spoilt, layout, theirs);
        EXPECT_TRUE(at::equal(theirs, packed)) << bad << " at " << at;
      }
    }
  }
}

// Processors can be told to take denormals for zero; a rank that does must not differ.
TEST_P(Quantize, DoesNotDependOnDenormals) {
  struct Flush {
    Flush() { on = at::globalContext().setFlushDenormal(true); }
    ~Flush() { at::globalContext().setFlushDenormal(false); }
    bool on = false;
  };
  for (int exponent = -149; exponent < -100; ++exponent) {
    const at::Tensor values = random({500}, 4, false, at::kFloat) * std::ldexp(1.0F, exponent);
    const BlockLayout layout({500}, format());
    const at::Tensor packed = packed_of(values, layout), out = values_of(packed, layout);
    const Flush flush;
    ASSERT_TRUE(flush.on);
    EXPECT_TRUE(at::equal(packed_of(values, layout), packed)) << exponent;
    EXPECT_TRUE(same_bits(values_of(packed, layout), out)) << exponent;
  }
}

TEST_P(Quantize, PackedBytesMayLieAtAnyAddress) {
  const at::Tensor values = random({4101}, 5, false, at::kFloat);
  const BlockLayout layout({4101}, format());
  const at::Tensor expected = packed_of(values, layout);
  for (const std::int64_t offset : {1, 2, 3, 5}) {
    const at::Tensor room = at::full({offset + expected.numel() + 1}, 0xA5, at::kByte);
    const at::Tensor packed = room.narrow(0, offset, expected.numel());
    for (const bool by_operations : {false, true}) {
      packed.zero_();
      by_operations ? quantize_by_operations(values, layout, packed)
                    : void(quantize(values, layout, packed));
      EXPECT_TRUE(at::equal(packed, expected)) << offset;
      const at::Tensor out = at::empty_like(values);
      by_operations ? dequantize_by_operations(packed, layout, out, false)
                    : dequantize(packed, layout, out);
      EXPECT_TRUE(same_bits(out, values_of(expected, layout))) << offset;
    }
    EXPECT_EQ(room[0].item<int>(), 0xA5);
    EXPECT_EQ(room[room.numel() - 1].item<int>(), 0xA5);
  }
}

TEST_P(Quantize, NothingIsFinite) {
  const BlockLayout layout({0}, format());
  const at::Tensor none = at::empty({0}), packed = at::empty({0}, at::kByte);
  EXPECT_TRUE(quantize(none, layout, packed));
  quantize_by_operations(none, layout, packed);
  dequantize(packed, layout, none);
  dequantize_and_add(packed, layout, none);
  dequantize_by_operations(packed, layout, none, /*add=*/true);
}

TEST(Quantize, RefusesTensorsThatAreNotOfTheLayout) {
  const BlockLayout layout({10}, {});
  const at::Tensor values = at::ones({10}), packed = at::empty({14}, at::kByte);
  const at::Tensor wrong_values[] = {at::Tensor(),
                                     at::ones({9}),
                                     at::ones({10}, at::kDouble),
                                     at::ones({10}, at::kInt),
                                     at::ones({10, 2}).select(1, 0),
                                     values.to("meta")};
  for (const at::Tensor& wrong : wrong_values) {
    EXPECT_THROW(quantize(wrong, layout, packed), c10::Error);
    EXPECT_THROW(dequantize(packed, layout, wrong), c10::Error);
    EXPECT_THROW(dequantize_and_add(packed, layout, wrong), c10::Error);
  }
  EXPECT_THROW(dequantize_and_add(packed, layout, at::ones({10}, at::kHalf)), c10::Error);
  for (const at::Tensor& wrong : {at::empty({13}, at::kByte), at::empty({14}, at::kChar),
                                  at::empty({14, 2}, at::kByte).select(1, 0)}) {
    EXPECT_THROW(quantize(values, layout, wrong), c10::Error);
    EXPECT_THROW(dequantize(wrong, layout, values), c10::Error);
  }
}

}  // namespace
}  // namespace zero::quantization
