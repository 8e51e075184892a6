#include "random.hpp"

#include <numeric>
#include <utility>

namespace zero::data {

std::uint64_t SplitMix64::next() {
  state_ += 0x9E3779B97F4A7C15U;
  std::uint64_t bits = state_;
  bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9U;
  bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EBU;
  return bits ^ (bits >> 31);
}

std::uint64_t SplitMix64::below(std::uint64_t bound) {
  // The lowest 2^64 mod bound draws are rejected, so that all remainders are equally likely.
  const std::uint64_t excess = (0 - bound) % bound;
  std::uint64_t draw = next();
  while (draw < excess) draw = next();
  return draw % bound;
}

SplitMix64 generator_for(std::uint64_t seed, std::uint64_t stream) {
  return SplitMix64(SplitMix64(SplitMix64(seed).next() + stream).next());
}

std::vector<std::int64_t> permutation(std::int64_t size, SplitMix64 generator) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(size));
  std::iota(order.begin(), order.end(), std::int64_t{0});
  for (std::size_t i = order.size(); i-- > 1;) std::swap(order[i], order[generator.below(i + 1)]);
  return order;
}

}  // namespace zero::data
