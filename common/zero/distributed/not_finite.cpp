#include <utility>

#include <zero/distributed/not_finite.hpp>
#include <zero/distributed/rank_order.hpp>

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
                     const std::vector<int>& ranks, bool overwritten_finite) {
  bool found = false;
  for (std::size_t i = 0; i < contributions.size(); ++i) {
    const bool overwritten = contributions[i].data_ptr() == sum.data_ptr();
    if (overwritten ? overwritten_finite : all_finite(contributions[i])) continue;
    if (ranks[i] >= 0) note(ranks[i]);
    found = true;
  }
  if (!found) note(rank_);
}

}  // namespace zero::dist
