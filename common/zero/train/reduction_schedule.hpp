#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <vector>

#include <zero/base/error.hpp>

namespace zero::train {

/// Lets collectives go in one fixed order, whatever the order in which gradients arrive.
///
/// Autograd may finish two parameters in different orders on two ranks (one rank skipped a branch,
/// say), and two ranks that start different collectives wait for each other for ever. So the order
/// is fixed beforehand: reverse registration, which is about the order in which backward runs. A
/// gradient that comes early waits until all before it have gone.
class ReductionSchedule {
 public:
  explicit ReductionSchedule(std::vector<std::size_t> order)
      : order_(std::move(order)), ready_(order_.size()) {
    std::size_t largest = 0;
    for (const std::size_t index : order_) largest = std::max(largest, index + 1);
    position_.assign(largest, order_.size());
    for (std::size_t p = 0; p < order_.size(); ++p) position_[order_[p]] = p;
  }

  /// Whether nothing has gone or waits since the beginning or the last finish().
  bool idle() const {
    return next_ == 0 && std::find(ready_.begin(), ready_.end(), true) == ready_.end();
  }

  /// A gradient for `index` has come. Throws zero::Error if that has gone already: it would be
  /// lost.
  void expect(std::size_t index) const {
    if (position_[index] < next_) {
      throw Error(
          "a gradient came after its parameter was reduced: is the parameter used outside of its "
          "unit? (or backward() was called twice before finish_backward())");
    }
  }

  /// `index` may go; launches it and what waited for it, in order, as far as there is no gap.
  /// Throws as expect() does.
  void ready(std::size_t index, const std::function<void(std::size_t)>& launch) {
    expect(index);
    ready_[position_[index]] = true;
    while (next_ < order_.size() && ready_[next_]) launch(order_[next_++]);
  }

  /// Whether `index` has gone or waits.
  bool has(std::size_t index) const { return position_[index] < next_ || ready_[position_[index]]; }

  /// Launches everything that has not gone, ready or not, and begins anew.
  void finish(const std::function<void(std::size_t)>& launch) {
    while (next_ < order_.size()) launch(order_[next_++]);
    forget();
  }

  /// Begins anew without launching anything: a backward pass was given up.
  void forget() {
    next_ = 0;
    ready_.assign(order_.size(), false);
  }

 private:
  std::vector<std::size_t> order_;
  std::vector<std::size_t> position_;  // of an index in order_
  std::vector<bool> ready_;            // by position
  std::size_t next_ = 0;
};

}  // namespace zero::train
