#include "zero/train/finite_weights.hpp"

#include <ATen/ops/isfinite.h>
#include <fmt/format.h>

#include "zero/error.hpp"

namespace zero::train {

void check_weights(const Strategy& strategy) {
  for (std::size_t i = 0; i < strategy.list().size(); ++i) {
    const at::Tensor held = strategy.stored(i).tensor;
    if (!held.defined() || held.numel() == 0 || !held.is_floating_point()) continue;
    if (at::isfinite(held).all().item<bool>()) continue;
    throw Error(
        fmt::format("parameter '{}' is infinite or NaN in places: nobody could go on from "
                    "that (a lower learning rate or clipping may help)",
                    strategy.list().parameters[i].name));
  }
}

void check_weights_of_all_ranks(Strategy& strategy, const std::string& what) {
  std::string mine;
  try {
    check_weights(strategy);
  } catch (const Error& error) {
    mine = error.what();
  }
  const std::vector<std::string> all = strategy.communicator().exchange(mine);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (!all[rank].empty()) throw Error(fmt::format("{}: rank {}: {}", what, rank, all[rank]));
  }
}

}  // namespace zero::train
