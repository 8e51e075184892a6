#pragma once

#include <cstdint>
#include <vector>

namespace zero::data {

/// The SplitMix64 generator: Guy Steele, Doug Lea and Christine Flood, "Fast Splittable
/// Pseudorandom Number Generators", OOPSLA 2014. A 64-bit counter that steps by 2^64 / golden
/// ratio, scrambled. It is a few lines in any language, and peers.py has the same: a seed gives
/// the same order in Python, in C++, and with every standard library.
class SplitMix64 {
 public:
  explicit SplitMix64(std::uint64_t seed) : state_(seed) {}

  /// The next 64 random bits.
  std::uint64_t next();

  /// A number from 0 to bound - 1, all equally likely (draws that would favour small numbers are
  /// rejected). `bound` is at least 1.
  std::uint64_t below(std::uint64_t bound);

 private:
  std::uint64_t state_;
};

/// Generator number `stream` (an epoch, a tensor, ...) of `seed`: it starts from
/// first_draw(first_draw(seed) + stream), where first_draw(s) is SplitMix64(s).next().
SplitMix64 generator_for(std::uint64_t seed, std::uint64_t stream);

/// 0 to size - 1 in random order: Fisher-Yates from the back. For i = size - 1 down to 1, swaps
/// items i and generator.below(i + 1).
std::vector<std::int64_t> permutation(std::int64_t size, SplitMix64 generator);

}  // namespace zero::data
