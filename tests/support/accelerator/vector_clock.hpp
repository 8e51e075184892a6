#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace zero::testing::emulated {

/// How much one actor knows of every actor: the number of the last action of each that happened
/// before. Actors are numbered from 0.
class VectorClock {
 public:
  std::uint64_t operator[](std::size_t actor) const {
    return actor < times_.size() ? times_[actor] : 0;
  }

  /// One more action of this actor. Returns its number.
  std::uint64_t tick(std::size_t actor) {
    if (actor >= times_.size()) times_.resize(actor + 1);
    return ++times_[actor];
  }

  /// From now on it knows what `other` knows.
  void join(const VectorClock& other) {
    if (times_.size() < other.times_.size()) times_.resize(other.times_.size());
    for (std::size_t a = 0; a < other.times_.size(); ++a) {
      times_[a] = std::max(times_[a], other.times_[a]);
    }
  }

  /// Whether it knows all that `other` knows.
  bool covers(const VectorClock& other) const {
    for (std::size_t a = 0; a < other.times_.size(); ++a) {
      if ((*this)[a] < other.times_[a]) return false;
    }
    return true;
  }

 private:
  std::vector<std::uint64_t> times_;
};

}  // namespace zero::testing::emulated
