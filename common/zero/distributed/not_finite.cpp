#include <ATen/ops/isfinite.h>

#include <utility>

#include <zero/distributed/not_finite.hpp>

namespace zero::dist {

std::vector<bool> NotFinite::take() {
  std::vector<bool> taken = std::exchange(found_, {});
  taken.resize(static_cast<std::size_t>(size_), false);
  return taken;
}

void NotFinite::note(int rank) {
  found_.resize(static_cast<std::size_t>(size_), false);
  found_[static_cast<std::size_t>(rank)] = true;
  if (parent_ != nullptr) parent_->note(ranks_[static_cast<std::size_t>(rank)]);
}

void NotFinite::find(const at::Tensor& sum, const std::vector<at::Tensor>& contributions,
                     bool overwritten_finite, bool adds_sums) {
  bool found = false;
  for (std::size_t r = 0; r < contributions.size(); ++r) {
    const bool overwritten = contributions[r].data_ptr() == sum.data_ptr();
    if (overwritten ? overwritten_finite : at::isfinite(contributions[r]).all().item<bool>()) {
      continue;
    }
    if (!adds_sums) note(static_cast<int>(r));
    found = true;
  }
  if (!found) note(rank_);
}

}  // namespace zero::dist
