#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <iterator>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include <zero/base/error.hpp>
#include <zero/memory/shared_arena.hpp>

namespace zero::memory {
namespace {

constexpr std::int64_t kMiB = 1 << 20;

// The offset of a new block of this value.
std::int64_t filled(SharedArena& arena, std::int64_t bytes, int value) {
  const std::int64_t offset = arena.allocate(bytes).value();
  std::memset(arena.at(offset), value, static_cast<std::size_t>(bytes));
  return offset;
}

std::int64_t bytes_in_memory(const SharedArena& arena) {
  struct stat state {};
  EXPECT_EQ(::fstat(arena.file(), &state), 0);
  return static_cast<std::int64_t>(state.st_blocks) * 512;
}

TEST(SharedArena, IsReadByOthersWhereItSaysAndUsesGapsAgain) {
  for (const std::size_t size : {5000, 2 << 20, 5 << 20}) {
    SharedArena arena;
    const SharedArena seen(::getpid(), arena.file());
    const auto put = [&](const std::string& text) {
      const std::int64_t offset = arena.allocate(static_cast<std::int64_t>(text.size())).value();
      std::memcpy(arena.at(offset), text.data(), text.size());
      return offset;
    };
    const auto holds = [&](std::int64_t offset, const std::string& text) {
      return std::memcmp(seen.at(offset), text.data(), text.size()) == 0;
    };
    const std::string first(size, 'a'), second(300, 'b'), third(size - 1000, 'c');
    const std::int64_t one = put(first), two = put(second);
    EXPECT_TRUE(holds(one, first) && holds(two, second));
    arena.free(one);
    const std::int64_t three = put(third);
    EXPECT_LT(three, two);
    EXPECT_TRUE(holds(two, second) && holds(three, third));
    EXPECT_GT(put(first), two) << "the gap before it is too small now";
    seen.forget(two, 300);
    EXPECT_TRUE(holds(two, second));
  }
}

TEST(SharedArena, TakesTheFirstGapThatIsLargeEnough) {
  constexpr std::int64_t kSize = 8 * kMiB, kPage = 4096;
  SharedArena arena(kSize);
  std::map<std::int64_t, std::int64_t> blocks;  // lengths by offset
  const auto first_gap = [&](std::int64_t length) -> std::optional<std::int64_t> {
    std::int64_t begin = 0;
    for (const auto& [offset, other] : blocks) {
      if (offset - begin >= length) return begin;
      begin = offset + other;
    }
    return kSize - begin >= length ? std::optional(begin) : std::nullopt;
  };
  std::mt19937 random(1);
  int refused = 0;
  for (int i = 0; i < 4000; ++i) {
    const std::int64_t pages = 1 + random() % 100;
    const std::optional<std::int64_t> expected = first_gap(pages * kPage);
    ASSERT_EQ(arena.allocate(pages * kPage - random() % kPage), expected) << "block " << i;
    expected ? static_cast<void>(blocks[*expected] = pages * kPage) : static_cast<void>(++refused);
    while (!blocks.empty() && random() % 2 == 0) {
      const auto block = std::next(blocks.begin(), random() % blocks.size());
      arena.free(block->first);
      blocks.erase(block);
    }
  }
  EXPECT_GT(refused, 0);
}

TEST(SharedArena, KeepsAsMuchMemoryAsItOnceHeld) {
  SharedArena arena;
  const auto fill = [&](std::int64_t bytes) { return filled(arena, bytes, 1); };
  const std::int64_t one = fill(300 * kMiB), between = fill(2 * kMiB), two = fill(100 * kMiB);
  EXPECT_EQ(bytes_in_memory(arena), 402 * kMiB);
  arena.free(one);
  arena.free(two);
  EXPECT_EQ(bytes_in_memory(arena), 402 * kMiB) << "kept: it once held as much";
  EXPECT_EQ(fill(300 * kMiB), one) << "the same memory";
  EXPECT_EQ(bytes_in_memory(arena), 402 * kMiB);
  arena.free(one);
  const std::int64_t larger = fill(350 * kMiB);
  EXPECT_GT(larger, between) << "behind the gap, which is too small";
  EXPECT_EQ(bytes_in_memory(arena), 402 * kMiB) << "250 MiB of the gap are given back";
  arena.free(larger);
  EXPECT_EQ(bytes_in_memory(arena), 402 * kMiB) << "kept again";
  EXPECT_FALSE(arena.allocate(std::int64_t{1} << 50));
  EXPECT_THROW(SharedArena(::getpid(), /*file=*/-1), Error);
}

TEST(SharedArena, GivesGapsBackAndNotWhatLiesBetweenThem) {
  SharedArena arena;
  std::vector<std::int64_t> blocks;
  for (int i = 0; i < 4; ++i) blocks.push_back(filled(arena, 6 * kMiB, i));
  arena.free(blocks[0]);
  arena.free(blocks[2]);
  EXPECT_GT(filled(arena, 8 * kMiB, 4), blocks[3]) << "behind the gaps, which are too small";
  EXPECT_EQ(bytes_in_memory(arena), 24 * kMiB) << "one gap and 2 MiB of the other are given back";
  EXPECT_EQ(filled(arena, 6 * kMiB, 5), blocks[0]);
  EXPECT_EQ(bytes_in_memory(arena), 26 * kMiB);
  for (const std::size_t i : {1, 3}) {
    for (const std::int64_t at : {std::int64_t{0}, 6 * kMiB - 1}) {
      EXPECT_EQ(*arena.at(blocks[i] + at), std::byte(i));
    }
  }
}

// Its tensors would otherwise be its parent's.
TEST(SharedArena, AForkedChildHasOneOfItsOwn) {
  const pid_t child = ::fork();
  if (child == 0) {
    SharedArena& outer = share_large_blocks();
    const std::int64_t block = outer.allocate(258 << 20).value();  // too much to keep
    *outer.at(block) = std::byte{1};
    const pid_t grandchild = ::fork();
    if (grandchild == 0) {
      const bool was_mine = outer.is_mine();
      outer.free(block);
      SharedArena& inner = share_large_blocks();
      const std::int64_t own = inner.allocate(3 << 20).value();
      *inner.at(own) = std::byte{2};
      ::_exit(was_mine || inner.file() == outer.file() ? 1 : 0);
    }
    int status = -1;
    ::waitpid(grandchild, &status, 0);
    const bool same = *outer.at(block) == std::byte{1} && &share_large_blocks() == &outer;
    ::_exit(status == 0 && same ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace zero::memory
