#include <ATen/ops/isfinite.h>
#include <fmt/format.h>

#include <zero/base/error.hpp>
#include <zero/io/own_tensors.hpp>
#include <zero/io/weights_fit.hpp>
#include <zero/memory/storage.hpp>
#include <zero/safetensors/format.hpp>

namespace zero::io {

train::ParameterShard flat(const train::ParameterShard& shard) {
  if (!shard.tensor.defined()) return {};
  return {memory::raw(shard.tensor).view({-1}), shard.begin};
}

safetensors::NamedTensors buffers_of(train::Strategy& strategy) {
  safetensors::NamedTensors all;
  for (const auto& b : strategy.module().named_buffers()) {
    all.emplace_back(b.key(), memory::raw(b.value()));
  }
  return all;
}

std::vector<safetensors::Spec> specs_of(train::Strategy& strategy) {
  std::vector<safetensors::Spec> specs = specs_of(strategy.stage_of_model().whole());
  const auto buffers = safetensors::specs_of(buffers_of(strategy), "the model");
  specs.insert(specs.end(), buffers.begin(), buffers.end());
  return specs;
}

void check_weights(train::Strategy& strategy) {
  strategy.verify_weights();
  for (std::size_t i = 0; i < strategy.list().size(); ++i) {
    strategy.bring(i);
    const at::Tensor held = strategy.placement(i).kept.tensor;
    if (!held.defined() || held.numel() == 0 || !held.is_floating_point()) continue;
    if (at::isfinite(held).all().item<bool>()) continue;
    throw Error(
        fmt::format("parameter '{}' is infinite or NaN in places: training cannot resume from "
                    "it (a lower learning rate or clipping may help)",
                    strategy.list().parameters[i].name));
  }
}

}  // namespace zero::io
