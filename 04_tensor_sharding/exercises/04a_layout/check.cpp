// Checks the rules of the layout, and counts in how many ranges each element is.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <random>

#include <grading/check.hpp>

#include "04a.hpp"

namespace exercise_04a {

using zero::exercise::Mistake;
using Sizes = std::vector<std::int64_t>;

std::int64_t rounded_up(std::int64_t elements, std::int64_t step) {
  return (elements + step - 1) / step * step;
}

void check_layout(const Layout& layout, const Sizes& sizes, int ranks) {
  if (layout.sizes != sizes || layout.offsets.size() != sizes.size()) {
    throw Mistake("the layout must have the sizes that were given, and as many offsets");
  }
  std::int64_t end = 0;  // of the last tensor
  for (std::size_t t = 0; t < sizes.size(); ++t) {
    const std::int64_t offset = layout.offsets[t], first = rounded_up(end, kAlignment);
    const std::string begin = fmt::format("tensor {} begins at element {}, ", t, offset);
    if (offset % kAlignment != 0) throw Mistake(begin + "not at a multiple of 64");
    if (offset < first) throw Mistake(begin + "before the one in front of it ends");
    if (offset > first) {
      throw Mistake(
          begin +
          fmt::format("where {} is early enough: padding is added where none is needed", first));
    }
    end = offset + sizes[t];
  }
  const std::int64_t shard = layout.shard;
  const std::int64_t least = rounded_up((end + ranks - 1) / ranks, kAlignment);
  if (shard % kAlignment != 0) {
    throw Mistake(fmt::format("a shard has {} elements, not a multiple of 64", shard));
  }
  if (shard < least) {
    throw Mistake(
        fmt::format("{} shards of {} elements have no room for {}: dividing by {} rounds down",
                    ranks, shard, end, ranks));
  }
  if (shard > least) {
    throw Mistake(fmt::format(
        "a shard has {} elements, where {} are enough: padding is added where none is needed",
        shard, least));
  }
}

void check_range(const Layout& layout, std::size_t t, int rank, const Range& range) {
  const std::int64_t size = layout.sizes[t], offset = layout.offsets[t];
  const std::int64_t shard_begin = rank * layout.shard;
  if (range.size < 0) {
    throw Mistake(
        fmt::format("rank {} has {} elements of tensor {}: if nothing of a tensor lies in a shard, "
                    "it is 0 elements",
                    rank, range.size, t));
  }
  if (range.size == 0) return;
  if (range.begin < 0 || range.begin + range.size > size) {
    if (offset > 0 && range.begin == std::max(offset, shard_begin)) {
      throw Mistake(
          fmt::format("the range of rank {} begins at element {} of tensor {}, which has {}: that "
                      "is its place in the buffer",
                      rank, range.begin, t, size));
    }
    throw Mistake(
        fmt::format("rank {} has {} elements of tensor {} from {} on, and the tensor has {}: what "
                    "follows is padding",
                    rank, range.size, t, range.begin, size));
  }
  if (range.in_shard < 0) {
    throw Mistake(
        fmt::format("tensor {} is at element {} of the shard of rank {}: if it begins in an "
                    "earlier shard, its range here is at 0",
                    t, range.in_shard, rank));
  }
  if (range.in_shard + range.size > layout.shard) {
    throw Mistake(
        fmt::format("rank {} has {} elements of tensor {} from element {} of its shard on, and the "
                    "shard ends at {}: the rest is in the next",
                    rank, range.size, t, range.in_shard, layout.shard));
  }
  if (offset + range.begin != shard_begin + range.in_shard) {
    throw Mistake(
        fmt::format("element {} of tensor {} is element {} of the buffer, and rank {} has it where "
                    "element {} is",
                    range.begin, t, offset + range.begin, rank, shard_begin + range.in_shard));
  }
}

void check_case(const Answer& answer, const Sizes& sizes, int ranks) {
  try {
    const Layout layout = answer.make_layout(sizes, ranks);
    check_layout(layout, sizes, ranks);
    for (std::size_t t = 0; t < sizes.size(); ++t) {
      std::vector<int> holders(static_cast<std::size_t>(sizes[t]));  // of each element
      for (int rank = 0; rank < ranks; ++rank) {
        const Range range = answer.range(layout, t, rank);
        check_range(layout, t, rank, range);
        for (std::int64_t i = 0; i < range.size; ++i) {
          ++holders[static_cast<std::size_t>(range.begin + i)];
        }
      }
      const auto found = std::find_if(holders.begin(), holders.end(), [](int n) { return n != 1; });
      if (found == holders.end()) continue;
      throw Mistake(
          fmt::format("element {} of tensor {} is in the ranges of {} ranks: each must be in one",
                      found - holders.begin(), t, *found));
    }
  } catch (const Mistake& mistake) {
    throw Mistake(fmt::format("tensors of {} elements, {} rank{}: {}", fmt::join(sizes, ", "),
                              ranks, ranks == 1 ? "" : "s", mistake.what()));
  }
}

void check(const Answer& answer) {
  check_case(answer, {100, 7, 200}, 3);
  check_case(answer, {64, 128, 0, 65}, 2);
  check_case(answer, {600}, 5);
  // With 64 ranks or fewer, rounding up hides a division that rounds down.
  check_case(answer, {6401}, 100);
  std::mt19937 random(1);
  const Sizes edges = {0, 1, 63, 64, 65};
  for (int i = 0; i < 300; ++i) {
    Sizes sizes(1 + random() % 8);
    for (std::int64_t& size : sizes) {
      size = random() % 2 == 0 ? edges[random() % edges.size()] : random() % 1000;
    }
    check_case(answer, sizes, static_cast<int>(1 + random() % 9));
  }
}

}  // namespace exercise_04a
