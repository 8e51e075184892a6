#pragma once

#include <torch/types.h>

#include <cmath>
#include <vector>

namespace zero::optim {

/// A sum of doubles with what their additions round off beside it, about 100 bits together (Knuth's
/// two-sum). Added in another order or in other parts it is rounded to the same double, unless it
/// lies within 2^-30 of a last bit from the middle between two.
class WideSum {
 public:
  WideSum() = default;
  WideSum(double high, double low) : high_(high), low_(low) {}

  void add(double x) {
    const double sum = high_ + x;
    const double added = sum - high_;
    low_ += (high_ - (sum - added)) + (x - added);
    high_ = sum;
  }
  void add(const WideSum& other) {
    add(other.high_);
    add(other.low_);
  }

  double high() const { return high_; }
  double low() const { return low_; }
  /// Infinite or NaN if a sum on the way was.
  double rounded() const { return std::isfinite(high_) ? high_ + low_ : high_; }

 private:
  double high_ = 0;
  double low_ = 0;
};

/// squared_norms() in that precision. On a GPU `low()` is 0.
std::vector<WideSum> wide_squared_norms(const std::vector<at::Tensor>& tensors);

}  // namespace zero::optim
