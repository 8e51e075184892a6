#include "prefetch.hpp"

#include <algorithm>

namespace zero {

std::vector<std::size_t> Prefetch::use(std::size_t unit) {
  if (!known_) {
    order_.push_back(unit);
    return {};
  }
  if (lost_ || next_ == order_.size() || order_[next_] != unit) {
    lost_ = true;
    return {};
  }
  ++next_;
  const std::size_t end = std::min(order_.size(), next_ + static_cast<std::size_t>(lookahead_));
  return {order_.begin() + static_cast<std::ptrdiff_t>(next_),
          order_.begin() + static_cast<std::ptrdiff_t>(end)};
}

}  // namespace zero
