#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>

#include <zero/train/flat_parameters.hpp>

namespace zero {

/// Reductions in flight, oldest first, with a limit on their bytes. Without a limit, a backward
/// pass that is faster than the network would hold all gradients again and lose the memory that
/// stage 2 saves. With room for two buckets, one is sent while the next is filled. Padding, some
/// bytes per parameter, is not counted: two full buckets fit into twice the size of a bucket.
class ReductionQueue {
 public:
  explicit ReductionQueue(std::int64_t most_bytes) : most_bytes_(most_bytes) {}

  /// Starts the reduction of `bucket`. If it does not fit next to those in flight, first waits for
  /// the oldest of them; a bucket larger than the limit goes alone.
  void start(train::FlatParameters& bucket) {
    while (!in_flight_.empty() && bytes_ + bucket.bytes() > most_bytes_) {
      take_oldest().finish_reduce();
    }
    bucket.start_reduce();
    in_flight_.push_back(&bucket);
    bytes_ += bucket.bytes();
    most_seen_ = std::max(most_seen_, bytes_);
  }

  /// Blocks until all are done.
  void finish() {
    while (!in_flight_.empty()) take_oldest().finish_reduce();
  }

  /// The most bytes that were ever in flight at once.
  std::int64_t most_seen() const { return most_seen_; }

 private:
  train::FlatParameters& take_oldest() {
    train::FlatParameters& oldest = *in_flight_.front();
    in_flight_.pop_front();
    bytes_ -= oldest.bytes();
    return oldest;
  }

  std::int64_t most_bytes_;
  std::int64_t bytes_ = 0;
  std::int64_t most_seen_ = 0;
  std::deque<train::FlatParameters*> in_flight_;
};

}  // namespace zero
