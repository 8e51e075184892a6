#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>

#include "bucket.hpp"

namespace zero {

/// Reductions under way, oldest first, with a bound on their bytes. Without a bound a backward pass
/// that is faster than the network would hold all gradients again, and the memory that stage 2
/// saves would be gone; with room for two buckets one is sent while the next is filled. Padding,
/// some bytes a parameter, is not counted: two full buckets fit into twice the size of a bucket.
class InFlight {
 public:
  explicit InFlight(std::int64_t most_bytes) : most_bytes_(most_bytes) {}

  /// Starts the reduction of `bucket`. Where it does not fit beside those under way, waits for the
  /// oldest of them first; a bucket larger than the bound goes alone.
  void start(Bucket& bucket, bool whole) {
    while (!under_way_.empty() && bytes_ + bucket.bytes() > most_bytes_) finish_oldest();
    bucket.start_reduce(whole);
    under_way_.push_back(&bucket);
    bytes_ += bucket.bytes();
    most_seen_ = std::max(most_seen_, bytes_);
  }

  /// Blocks until all are done.
  void finish() {
    while (!under_way_.empty()) finish_oldest();
  }

  /// The most bytes that were ever under way at once.
  std::int64_t most_seen() const { return most_seen_; }

 private:
  void finish_oldest() {
    Bucket* const oldest = under_way_.front();
    under_way_.pop_front();
    bytes_ -= oldest->bytes();
    oldest->finish_reduce();
  }

  std::int64_t most_bytes_;
  std::int64_t bytes_ = 0;
  std::int64_t most_seen_ = 0;
  std::deque<Bucket*> under_way_;
};

}  // namespace zero
