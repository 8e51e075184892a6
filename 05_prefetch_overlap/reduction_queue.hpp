#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <utility>

#include <zero/train/flat/flat_gradients.hpp>

namespace zero {

/// Reductions in flight, oldest first, with a limit on their bytes. Without a limit, a backward
/// pass that is faster than the network would hold all gradients again and lose the memory that
/// stage 2 saves. The bucket that backward fills is not counted: with room for two, two are sent
/// while a third is filled. Nor is padding, so twice the size of a bucket has room for two.
class ReductionQueue {
 public:
  using Finished = std::function<void(const train::FlatGradients& bucket)>;

  /// `finished` is called after every FlatGradients::finish_reduce().
  ReductionQueue(std::int64_t most_bytes, Finished finished)
      : most_bytes_(most_bytes), finished_(std::move(finished)) {}

  /// Starts the reduction of `bucket`. If it does not fit next to those in flight, first waits for
  /// the oldest of them; a bucket larger than the limit goes alone. So does one whose reduction has
  /// a rest (train::GradientTransfer): the rest of the one before then starts early, which is good
  /// because links between groups are slower.
  void start(train::FlatGradients& bucket) {
    finish(bucket.averages_at_once() ? most_bytes_ - bucket.parameters().bytes() : -1);
    bucket.start_reduce();
    in_flight_.push_back(&bucket);
    bytes_ += bucket.parameters().bytes();
    most_seen_ = std::max(most_seen_, bytes_);
  }

  /// Waits for the oldest until at most `at_most` bytes are in flight; by default for all.
  void finish(std::int64_t at_most = -1) {
    while (!in_flight_.empty() && bytes_ > at_most) {
      train::FlatGradients& oldest = *in_flight_.front();
      in_flight_.pop_front();
      bytes_ -= oldest.parameters().bytes();
      oldest.finish_reduce();
      finished_(oldest);
    }
  }

  /// The most bytes that were ever in flight at once.
  std::int64_t most_seen() const { return most_seen_; }

 private:
  std::int64_t most_bytes_;
  Finished finished_;
  std::int64_t bytes_ = 0;
  std::int64_t most_seen_ = 0;
  std::deque<train::FlatGradients*> in_flight_;
};

}  // namespace zero
