#include "prefetch.hpp"

#include <algorithm>

namespace zero {

std::vector<std::size_t> Prefetch::use(std::size_t unit) {
  const std::size_t here = seen_.size();
  seen_.push_back(unit);
  if (!known() || lost_) return {};
  if (here >= order_.size() || order_[here] != unit) {
    lost_ = true;
    return {};
  }
  const std::size_t next = here + 1;
  const std::size_t end = std::min(order_.size(), next + static_cast<std::size_t>(lookahead_));
  return {order_.begin() + static_cast<std::ptrdiff_t>(next),
          order_.begin() + static_cast<std::ptrdiff_t>(end)};
}

}  // namespace zero
