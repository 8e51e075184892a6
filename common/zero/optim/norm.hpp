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

/// Sum of the squares of all elements, added in double in one fixed order. Float and half types.
double squared_norm(const at::Tensor& tensor);

/// squared_norm() of each tensor. Tensors of one device, of float and half types. On a GPU a few
/// kernels add up all tensors together, in double but in another order, and the host waits once, to
/// read one tensor.
std::vector<double> squared_norms(const std::vector<at::Tensor>& tensors);

/// squared_norms() in that precision. On a GPU `low()` is 0.
std::vector<WideSum> wide_squared_norms(const std::vector<at::Tensor>& tensors);

/// The largest absolute value of an element of each tensor, exact; 0 for a tensor without elements,
/// NaN if one is NaN. Types, devices and waits as in squared_norms().
std::vector<double> largest_magnitudes(const std::vector<at::Tensor>& tensors);

/// The L2 norm of a gradient whose parts have these squared norms, in double. They are added as a
/// WideSum, so that their order does not count. A caller that needs a float rounds it once.
double norm_from_squares(const std::vector<double>& squares);

/// The factor that limits the norm to `max_norm`: 1 if it is within the limit, max_norm / (norm +
/// 1e-6) otherwise (as torch.nn.utils.clip_grad_norm_). Computed once, in float.
float clip_coefficient(float norm, double max_norm);
/// The same in double, for a model with parameters of double.
double clip_coefficient(double norm, double max_norm);

namespace detail {

/// What a GPU does: the norms of this order (2 or infinity) of all tensors, by a list operation of
/// LibTorch. `more` [n]: values of their device that are read with them, and stand behind them.
std::vector<double> norms_by_list(const std::vector<at::Tensor>& tensors, double order,
                                  const at::Tensor& more = {});

}  // namespace detail

}  // namespace zero::optim
