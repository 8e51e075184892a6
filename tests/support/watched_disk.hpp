#pragma once

#include <gtest/gtest.h>
#include <torch/types.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <thread>

#include "disk.hpp"

namespace zero::testing {

/// Sees every tile that moves. Asserts that nothing moves of what is being updated. Delays one
/// hand-over.
class WatchedDisk {
 public:
  /// Delays hand-over `late`: transfers before they begin and after they have ended, in the order
  /// in which they begin; then updates.
  explicit WatchedDisk(int late)
      : late_(late), disk_([this](const Transfer& t) { return transfer(t); }) {}

  /// Does `work`, an update of `bytes`.
  void update(const at::Tensor& bytes, const std::function<void()>& work) {
    size_ = bytes.nbytes();
    updated_ = bytes.const_data_ptr();
    delay(handed_over_++);
    work();
    updated_ = nullptr;
  }
  int hand_overs() const { return handed_over_; }

 private:
  ssize_t transfer(const Transfer& t) {
    const auto* const updated = static_cast<const char*>(updated_.load());
    const auto* const data = static_cast<const char*>(t.data);
    EXPECT_FALSE(updated != nullptr && data >= updated && data < updated + size_)
        << "a tile moves that is being updated";
    const int before = handed_over_++;
    delay(before);
    const ssize_t done = t.as_asked();
    delay(handed_over_++);
    return done;
  }
  void delay(int hand_over) const {
    if (hand_over == late_) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }

  const int late_;
  std::atomic<int> handed_over_ = 0;
  std::atomic<const void*> updated_ = nullptr;
  std::atomic<std::size_t> size_ = 0;
  Disk disk_;
};

}  // namespace zero::testing
