// The arithmetic of pieces: which elements of a whole tensor they have, and what one needs of
// others.

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <fmt/format.h>

#include <tests/support/error_of.hpp>
#include <zero/io/checkpoint_pieces.hpp>
#include <zero/train/flat/shard_layout.hpp>

namespace zero::io::checkpoint {
namespace {

using testing::expect_error;
using Copies = std::vector<Run>;  // in a test Run is another one

// How a tensor axis cuts a tensor.
struct Cut {
  int dim, parts;
};

// The pieces of ranks: each part is cut into shards of `each` elements.
std::vector<Piece> pieces_of(const std::vector<std::int64_t>& shape, const Cut& cut,
                             std::int64_t each) {
  std::vector<Piece> pieces;
  const std::int64_t of_part = c10::multiply_integers(shape) / cut.parts;
  for (int part = 0; part < cut.parts; ++part) {
    for (std::int64_t begin = 0; begin < of_part; begin += each) {
      pieces.push_back(
          {begin, std::min(each, of_part - begin), cut.dim, part, cut.parts, pieces.size()});
    }
  }
  return pieces;
}

at::Tensor values_of(const Piece& p, const at::Tensor& whole) {
  return whole.chunk(p.parts, p.dim)[p.part].flatten().narrow(0, p.begin, p.size);
}

Copies copies_to(const std::vector<std::int64_t>& shape, const std::vector<Piece>& saved,
                 const Piece& wanted) {
  return copies(runs_of(shape, saved), runs_of(shape, {wanted}));
}

TEST(CheckpointPieces, OfAnyCutComeFromThoseOfAnyOther) {
  const std::vector<std::int64_t> shape = {4, 6, 2};
  const at::Tensor whole = at::arange(48).view(shape);
  const std::vector<Cut> cuts = {{0, 1}, {0, 2}, {0, 4}, {1, 2}, {1, 3}, {2, 2}};
  for (const Cut& a : cuts) {
    for (const std::int64_t each : {5, 8, 48}) {
      const std::vector<Piece> saved = pieces_of(shape, a, each);
      EXPECT_NO_THROW(check_complete("w", shape, saved));
      for (const Cut& b : cuts) {
        for (const Piece& wanted : pieces_of(shape, b, 7)) {
          SCOPED_TRACE(fmt::format("{}/{} to {}/{}", a.dim, a.parts, b.dim, b.parts));
          const at::Tensor loaded = at::full({wanted.size}, -1, at::kLong);
          for (const auto& c : copies_to(shape, saved, wanted)) {
            loaded.narrow(0, c.to, c.size)
                .copy_(values_of(saved[c.file], whole).narrow(0, c.from, c.size));
          }
          EXPECT_TRUE(at::equal(loaded, values_of(wanted, whole)));
        }
      }
    }
  }
}

TEST(CheckpointPieces, ThatAreCutAlikeAreCopiedAsOne) {
  const std::vector<std::int64_t> shape = {1000, 64};
  const std::vector<Piece> saved = pieces_of(shape, {1, 2}, 32000);
  EXPECT_EQ(copies_to(shape, saved, saved[1]), (Copies{{1, 0, 0, 32000}}));
}

// The example of lesson 04.4.
TEST(CheckpointPieces, SixHundredElementsOfTwoRanksOnThree) {
  const auto shards_of = [](int ranks) {
    const train::ShardLayout layout({600}, ranks);
    std::vector<Piece> pieces;
    for (int rank = 0; rank < ranks; ++rank) {
      const auto segment = layout.range(0, rank);
      pieces.push_back({.begin = segment.begin, .size = segment.size, .file = pieces.size()});
    }
    return pieces;
  };
  const std::vector<Piece> saved = shards_of(2), wanted = shards_of(3);
  EXPECT_EQ(copies_to({600}, saved, wanted[0]), (Copies{{0, 0, 0, 256}}));
  EXPECT_EQ(copies_to({600}, saved, wanted[1]), (Copies{{0, 256, 0, 64}, {1, 0, 64, 192}}));
  EXPECT_EQ(copies_to({600}, saved, wanted[2]), (Copies{{1, 192, 0, 88}}));
}

TEST(CheckpointPieces, GapsAndOverlapsAreRefused) {
  const auto piece = [](std::int64_t begin, std::int64_t size) {
    return Piece{.begin = begin, .size = size};
  };
  const std::vector<std::pair<std::vector<Piece>, const char*>> rows = {
      {{piece(0, 4), piece(5, 4)}, "elements 4 to 5 of 'w' are in no file"},
      {{piece(5, 4), piece(0, 6)}, "elements 5 to 6 of 'w' are in several files"},
      {{piece(0, 9), piece(0, 9)}, "elements 0 to 9 of 'w' are in several files"},
      {{piece(0, 4)}, "elements 4 to 9 of 'w' are in no file"},
      {{piece(1, 8)}, "elements 0 to 1 of 'w' are in no file"},
      {{}, "elements 0 to 9 of 'w' are in no file"}};
  for (const auto& row : rows) {
    expect_error([&] { check_complete("w", {9}, row.first); }, {row.second});
  }
  // Two parts of three; one twice.
  const std::vector<Piece> parts = pieces_of({2, 3}, {1, 3}, 2);
  expect_error(
      [&] {
        check_complete("w", {2, 3}, {parts[0], parts[2]});
      },
      {"1 to 2 of 'w' are in no"});
  expect_error(
      [&] {
        check_complete("w", {2, 3}, {parts[0], parts[1], parts[1]});
      },
      {"in several"});
}

TEST(CheckpointPieces, OfScalarsAndOfNothing) {
  EXPECT_NO_THROW(check_complete("w", {}, {{.size = 1}}));
  EXPECT_NO_THROW(check_complete("w", {3, 0}, {}));
  EXPECT_EQ(copies_to({}, {{.size = 1, .file = 4}}, {.size = 1}), (Copies{{4, 0, 0, 1}}));
  EXPECT_TRUE(copies_to({3, 0}, {}, {}).empty());
}

}  // namespace
}  // namespace zero::io::checkpoint
