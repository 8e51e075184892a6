#include <ATen/ops/isfinite.h>
#include <fmt/format.h>

#include <zero/base/error.hpp>
#include <zero/io/checkpoint_parts.hpp>
#include <zero/memory/storage.hpp>

namespace zero::io::checkpoint {

train::ParameterShard flat(const train::ParameterShard& shard) {
  if (!shard.tensor.defined()) return {};
  return {memory::raw(shard.tensor).view({-1}), shard.begin};
}

std::optional<Range> range_of(const train::ParameterShard& shard) {
  if (!shard.tensor.defined()) return std::nullopt;
  return Range{shard.begin, shard.tensor.numel()};
}

Cut cut_of(const nn::TensorPlacement& placement) {
  return placement.parts() > 1 ? Cut{placement.dim, placement.parts()} : Cut();
}

std::vector<SavedParameter> parameters_of(const train::Strategy& strategy) {
  std::vector<SavedParameter> all;
  for (const nn::Parameter& p : strategy.stage_of_model().whole().parameters) {
    all.push_back({p.name,
                   p.whole_sizes(),
                   c10::toString(p.tensor.scalar_type()),
                   0,
                   {},
                   {},
                   cut_of(p.placement)});
  }
  return all;
}

safetensors::NamedTensors buffers_of(train::Strategy& strategy) {
  safetensors::NamedTensors all;
  for (const auto& b : strategy.model().module().named_buffers()) {
    all.emplace_back(b.key(), memory::raw(b.value()));
  }
  return all;
}

std::vector<SavedBuffer> saved_buffers(const safetensors::NamedTensors& buffers) {
  std::vector<SavedBuffer> all;
  for (const auto& [name, buffer] : buffers) {
    all.push_back({name, buffer.sizes().vec(), c10::toString(buffer.scalar_type())});
  }
  return all;
}

void check_weights(train::Strategy& strategy) {
  strategy.verify_weights();
  for (std::size_t i = 0; i < strategy.list().size(); ++i) {
    const at::Tensor held = strategy.local_shard(i).tensor;
    if (!held.defined() || held.numel() == 0 || !held.is_floating_point()) continue;
    if (at::isfinite(held).all().item<bool>()) continue;
    throw Error(
        fmt::format("parameter '{}' is infinite or NaN in places: training cannot resume from "
                    "it (a lower learning rate or clipping may help)",
                    strategy.list().parameters[i].name));
  }
}

}  // namespace zero::io::checkpoint
