#pragma once

#include <torch/types.h>

#include <utility>
#include <vector>

namespace zero::dist {

/// Which ranks of a communicator have contributed a value that is not finite to a gradient, in the
/// parts that this rank has added up. An overflow of the sum alone counts as this rank's.
class NotFinite {
 public:
  NotFinite(int rank, int size) : rank_(rank), size_(size) {}

  /// Returns, by rank, what all reductions waited on since the last call have found. Acts on this
  /// rank alone.
  std::vector<bool> take();
  /// Notes that rank `rank` contributed such a value. For sums that no communicator makes.
  void note(int rank);
  /// For backends: `sum` of `contributions`, of these ranks, is not finite. Rank -1: the
  /// contribution is a sum itself, and the reduction that made it has noted the ranks at fault.
  /// `overwritten_finite`: whether the contribution that `sum` has overwritten, if any, was finite.
  void find(const at::Tensor& sum, const std::vector<at::Tensor>& contributions,
            const std::vector<int>& ranks, bool overwritten_finite);

  /// From now on notes of rank r count for `parent` too, as notes of its rank `ranks`[r].
  void set_parent(NotFinite* parent, std::vector<int> ranks) {
    parent_ = parent;
    ranks_ = std::move(ranks);
  }

 private:
  int rank_;
  int size_;
  std::vector<bool> found_;  // by rank; empty: none
  NotFinite* parent_ = nullptr;
  std::vector<int> ranks_;  // by rank: its number there
};

}  // namespace zero::dist
