#include "device.hpp"

#include <ATen/ops/empty.h>

#include <zero/distributed/agreement.hpp>
#include <zero/distributed/launch.hpp>
#include <zero/memory/storage.hpp>

namespace zero::ladder {

std::string ask_elsewhere(const std::function<std::string()>& question, const char* failure) {
  dist::LaunchOptions one;
  one.world_size = 1;
  const auto exits = dist::fork_processes(one, [&](int) { return dist::answer_of(question); });
  dist::check_all_well(exits, failure);
  return dist::content_of(exits.front().result);
}

void to_device(at::Device device, torch::nn::Module& model) {
  if (device.is_cpu()) return;
  for (at::Tensor& parameter : model.parameters()) {
    const at::Tensor there =
        at::empty(parameter.sizes(), at::TensorOptions(parameter.scalar_type()).device(device));
    memory::release_storage(there);
    parameter.set_data(there);
  }
}

data::Batch to_device(at::Device device, data::Batch batch) {
  for (at::Tensor* tensor : {&batch.inputs, &batch.targets, &batch.lengths}) {
    if (!tensor->defined() || device.is_cpu()) continue;
    // From pageable memory the host would wait for all that the GPU has to do before.
    *tensor = tensor->pin_memory().to(device, /*non_blocking=*/true);
  }
  return batch;
}

}  // namespace zero::ladder
