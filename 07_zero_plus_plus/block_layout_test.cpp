// Where blocks begin and end, how many bytes they take, and which layouts are refused.

#include "block_layout.hpp"

#include <gtest/gtest.h>

namespace zero::quantization {
namespace {

TEST(BlockLayout, CutsEachSegmentIntoBlocksOfItsOwn) {
  const BlockLayout layout({10, 0, 3, 8}, {.bits = 8, .block = 4});
  EXPECT_EQ(layout.elements(), 21);
  EXPECT_EQ(layout.blocks(), 3 + 0 + 1 + 2);
  EXPECT_EQ(layout.packed_bytes(), 4 * 6 + 21);
  std::vector<std::vector<std::int64_t>> runs;
  for (const BlockLayout::Run& r : layout.runs()) {
    runs.push_back({r.begin, r.blocks, r.length, r.first_block, r.payload, r.block_bytes});
  }
  const std::vector<std::vector<std::int64_t>> expected = {
      {0, 2, 4, 0, 24, 4}, {8, 1, 2, 2, 32, 2}, {10, 1, 3, 3, 34, 3}, {13, 2, 4, 4, 37, 4}};
  EXPECT_EQ(runs, expected);
}

TEST(BlockLayout, FourBitsTakeHalfAByteAndASegmentWholeBytes) {
  const BlockLayout layout({9, 1, 4}, {.bits = 4, .block = 4});
  EXPECT_EQ(layout.blocks(), 3 + 1 + 1);
  EXPECT_EQ(layout.packed_bytes(), 4 * 5 + (5 + 1 + 2));
  EXPECT_EQ(layout.runs()[1].payload, 20 + 4);
  EXPECT_EQ(layout.runs()[2].payload, 20 + 5);
  EXPECT_EQ(layout.runs()[3].payload, 20 + 6);
}

TEST(BlockLayout, HasTheBytesOfItsFormula) {
  for (std::int64_t n = 0; n <= 5000; ++n) {
    const std::int64_t blocks = (n + 2047) / 2048;
    EXPECT_EQ(BlockLayout({n}, {}).packed_bytes(), 4 * blocks + n);
    EXPECT_EQ(BlockLayout({n}, {.bits = 4}).packed_bytes(), 4 * blocks + (n + 1) / 2);
  }
}

TEST(BlockLayout, MayBeEmpty) {
  for (const std::vector<std::int64_t>& segments : {std::vector<std::int64_t>{}, {0, 0}}) {
    const BlockLayout layout(segments, {});
    EXPECT_EQ(layout.elements() + layout.blocks() + layout.packed_bytes(), 0);
  }
}

TEST(BlockLayout, RefusesWhatCannotBe) {
  for (const Format wrong : {Format{16, 2048}, Format{0, 2048}, Format{8, 0}, Format{4, 7}}) {
    EXPECT_THROW(BlockLayout({1}, wrong), c10::Error);
  }
  EXPECT_THROW(BlockLayout({1, -5}, {}), c10::Error);
}

}  // namespace
}  // namespace zero::quantization
