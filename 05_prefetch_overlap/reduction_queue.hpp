#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <utility>

#include <zero/train/flat_parameters.hpp>

namespace zero {

/// Reductions in flight, oldest first, with a limit on their bytes. Without a limit, a backward
/// pass that is faster than the network would hold all gradients again and lose the memory that
/// stage 2 saves. With room for two buckets, one is sent while the next is filled. Padding, some
/// bytes per parameter, is not counted: two full buckets fit into twice the size of a bucket.
class ReductionQueue {
 public:
  /// `finished` is called with what every reduction leaves.
  ReductionQueue(std::int64_t most_bytes, std::function<void(const train::ReducedShard&)> finished)
      : most_bytes_(most_bytes), finished_(std::move(finished)) {}

  /// Starts the reduction of `bucket`. If it does not fit next to those in flight, first waits for
  /// the oldest of them; a bucket larger than the limit goes alone.
  void start(train::FlatParameters& bucket) {
    while (!in_flight_.empty() && bytes_ + bucket.bytes() > most_bytes_) {
      finish_oldest();
    }
    bucket.start_reduce();
    in_flight_.push_back(&bucket);
    bytes_ += bucket.bytes();
    most_seen_ = std::max(most_seen_, bytes_);
  }

  /// Blocks until all are done.
  void finish() {
    while (!in_flight_.empty()) finish_oldest();
  }

  /// The most bytes that were ever in flight at once.
  std::int64_t most_seen() const { return most_seen_; }

 private:
  void finish_oldest() {
    train::FlatParameters& oldest = *in_flight_.front();
    in_flight_.pop_front();
    bytes_ -= oldest.bytes();
    finished_(oldest.finish_reduce());
  }

  std::int64_t most_bytes_;
  std::function<void(const train::ReducedShard&)> finished_;
  std::int64_t bytes_ = 0;
  std::int64_t most_seen_ = 0;
  std::deque<train::FlatParameters*> in_flight_;
};

}  // namespace zero
