#include "07b.hpp"

using exercise_07b::Quantized;
using zero::dist::Communicator;
using zero::dist::Purpose;

// A row for each block, with zeros behind the last element.
at::Tensor rows_of(const at::Tensor& flat, std::int64_t block) {
  const std::int64_t blocks = (flat.numel() + block - 1) / block;
  return at::constant_pad_nd(flat, {0, blocks * block - flat.numel()}).view({blocks, block});
}

Quantized quantize(const at::Tensor& values, std::int64_t block, int bits) {
  const int most = (1 << (bits - 1)) - 1;
  const at::Tensor rows = rows_of(values, block);
  // At least the smallest normal number: values below it become 0, and nothing is divided by 0.
  const at::Tensor scales = (rows.abs().amax(1, /*keepdim=*/true) / most).clamp_min(FLT_MIN);
  // NaN has no whole number. The scale of its block is NaN or infinite, so 0 becomes NaN again.
  const at::Tensor numbers = (rows / scales).nan_to_num(0).round().to(at::kChar);
  return {numbers.flatten().narrow(0, 0, values.numel()).clone(), scales.flatten()};
}

at::Tensor dequantize(const Quantized& quantized, std::int64_t block) {
  const at::Tensor rows = rows_of(quantized.numbers, block) * quantized.scales.unsqueeze(1);
  return rows.flatten().narrow(0, 0, quantized.numbers.numel()).clone();
}

at::Tensor pack(const at::Tensor& numbers) {
  const at::Tensor packed = at::zeros({(numbers.numel() + 1) / 2}, at::kByte);
  const auto* const from = numbers.const_data_ptr<std::int8_t>();
  auto* const to = packed.mutable_data_ptr<std::uint8_t>();
  for (std::int64_t i = 0; i < numbers.numel(); ++i) {
    to[i / 2] |= (from[i] & 15) << (i % 2 * 4);  // & 15 leaves the low four bits
  }
  return packed;
}

at::Tensor unpack(const at::Tensor& packed, std::int64_t count) {
  const at::Tensor numbers = at::empty({count}, at::kChar);
  const auto* const from = packed.const_data_ptr<std::uint8_t>();
  auto* const to = numbers.mutable_data_ptr<std::int8_t>();
  for (std::int64_t i = 0; i < count; ++i) {
    const int bits = from[i / 2] >> (i % 2 * 4) & 15;
    to[i] = static_cast<std::int8_t>(bits < 8 ? bits : bits - 16);
  }
  return numbers;
}

at::Tensor gather(Communicator& ranks, const at::Tensor& shard, std::int64_t block) {
  const Quantized mine = quantize(shard, block, 8);
  const Quantized all = {at::empty({ranks.size() * mine.numbers.numel()}, at::kChar),
                         at::empty({ranks.size() * mine.scales.numel()})};
  ranks.all_gather(all.numbers, mine.numbers, Purpose::kParameter).wait();
  ranks.all_gather(all.scales, mine.scales, Purpose::kParameter).wait();
  return dequantize(all, block);  // this rank's shard too, as on the other ranks
}
