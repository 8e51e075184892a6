#include "shard_blocks.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <limits>

#include <tests/support/zero_plus_plus_run.hpp>

namespace zero {
namespace {

// Every shard begins in another parameter; the last one is mostly padding.
const train::ShardLayout kLayout({700, 1, 0, 130, 64, 900, 7}, 3);

at::Tensor round_trip(const ShardBlocks& blocks, int rank, const at::Tensor& values) {
  const at::Tensor packed = at::empty({blocks.packed_bytes()}, at::kByte);
  blocks.quantize(rank, values, packed);
  at::Tensor out = at::full({blocks.shard()}, 77.0F);
  blocks.dequantize(rank, packed, out);
  return out;
}

TEST(ShardBlocks, HaveTheBytesOfTheLargestShard) {
  for (const int bits : {8, 4}) {
    for (const std::int64_t block : {64, 2048}) {
      const ShardBlocks blocks(kLayout, {bits, block});
      EXPECT_EQ(blocks.shard(), kLayout.shard());
      EXPECT_EQ(blocks.ranks(), 3);
      EXPECT_EQ(blocks.packed_bytes(), testing::packed_bytes(kLayout, bits, block));
    }
  }
}

bool lies_in_a_tensor(int rank, std::int64_t at) {
  for (std::size_t t = 0; t < kLayout.tensors(); ++t) {
    const auto range = kLayout.range(t, rank);
    if (at >= range.in_shard && at < range.in_shard + range.size) return true;
  }
  return false;
}

// A value that is huge changes its own parameter in its own shard, and nothing else.
TEST(ShardBlocks, ReachOverNeitherShardsNorParameters) {
  const ShardBlocks blocks(kLayout, {8, 2048});
  for (int rank = 0; rank < 3; ++rank) {
    const at::Tensor values = at::full({blocks.shard()}, 1.0F);
    for (std::int64_t at = 0; at < blocks.shard(); at += 13) {
      if (!lies_in_a_tensor(rank, at)) continue;  // padding counts for the tensor before it
      const at::Tensor spiked = values.clone();
      spiked[at].fill_(1e6F);
      const at::Tensor found = round_trip(blocks, rank, spiked);
      for (std::size_t t = 0; t < kLayout.tensors(); ++t) {
        const auto range = kLayout.range(t, rank);
        if (range.size == 0) continue;
        const bool has_spike = at >= range.in_shard && at < range.in_shard + range.size;
        const at::Tensor part = found.narrow(0, range.in_shard, range.size);
        EXPECT_EQ(at::equal(part, values.narrow(0, 0, range.size)), !has_spike)
            << "rank " << rank << ", tensor " << t << ", element " << at;
      }
    }
  }
}

TEST(ShardBlocks, AddWhatTheyDequantize) {
  const ShardBlocks blocks(kLayout, {4, 64});
  for (int rank = 0; rank < 3; ++rank) {
    const at::Tensor values = at::randn({blocks.shard()});
    const at::Tensor packed = at::empty({blocks.packed_bytes()}, at::kByte);
    EXPECT_TRUE(blocks.quantize(rank, values, packed));
    const at::Tensor sum = at::randn({blocks.shard()});
    const at::Tensor expected = sum + round_trip(blocks, rank, values);
    blocks.dequantize_and_add(rank, packed, sum);
    EXPECT_TRUE(at::equal(sum, expected)) << rank;
    values[5].fill_(std::numeric_limits<float>::infinity());
    EXPECT_FALSE(blocks.quantize(rank, values, packed));
  }
}

}  // namespace
}  // namespace zero
