#include <ATen/ops/isfinite.h>
#include <fmt/format.h>

#include <zero/base/error.hpp>
#include <zero/io/finite_weights.hpp>

namespace zero::io {

void check_weights(const train::Strategy& strategy) {
  for (std::size_t i = 0; i < strategy.list().size(); ++i) {
    const at::Tensor held = strategy.local_shard(i).tensor;
    if (!held.defined() || held.numel() == 0 || !held.is_floating_point()) continue;
    if (at::isfinite(held).all().item<bool>()) continue;
    throw Error(
        fmt::format("parameter '{}' is infinite or NaN in places: nobody could go on from "
                    "that (a lower learning rate or clipping may help)",
                    strategy.list().parameters[i].name));
  }
}

}  // namespace zero::io
