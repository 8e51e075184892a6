#pragma once

#include <torch/nn/module.h>

#include <tools/ladder/data/batch.hpp>
#include <zero/memory/storage.hpp>

namespace zero::testing {

/// Moves a model whose parameters have no storage yet to a device, where they have none either.
inline void move_to(at::Device device, torch::nn::Module& model) {
  if (device.is_cpu()) return;
  for (at::Tensor& p : model.parameters()) {
    p.set_data(memory::without_storage(p.sizes(), p.scalar_type(), device));
  }
}

inline data::Batch moved_to(at::Device device, data::Batch batch) {
  batch.inputs = batch.inputs.to(device);
  batch.targets = batch.targets.to(device);
  return batch;
}

}  // namespace zero::testing
