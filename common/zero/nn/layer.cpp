#include <fmt/format.h>

#include <utility>

#include <zero/base/error.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/memory/storage.hpp>
#include <zero/nn/layer.hpp>

namespace zero::nn {
namespace {
thread_local bool deferred = false;
}

DeferredStorage::DeferredStorage() : previous_(std::exchange(deferred, true)) {}
DeferredStorage::~DeferredStorage() { deferred = previous_; }
bool DeferredStorage::active() { return deferred; }

std::optional<Initializer> Layer::initializer(const std::string& name) const {
  const auto found = initializers_.find(name);
  if (found == initializers_.end()) return std::nullopt;
  return found->second;
}

void Layer::check_not_taken() const {
  if (holder_.empty()) return;
  throw Error(fmt::format(
      "to() on {} while {} has it: cast or move a model before the strategy is made, or after its "
      "release()",
      name(), holder_));
}

void Layer::to(torch::Device device, torch::Dtype dtype, bool non_blocking) {
  check_not_taken();
  Module::to(device, dtype, non_blocking);
}

void Layer::to(torch::Dtype dtype, bool non_blocking) {
  check_not_taken();
  Module::to(dtype, non_blocking);
}

void Layer::to(torch::Device device, bool non_blocking) {
  check_not_taken();
  Module::to(device, non_blocking);
}

at::Tensor Layer::add_parameter(const std::string& name, at::IntArrayRef sizes,
                                Initializer initializer, at::ScalarType dtype) {
  at::Tensor tensor = memory::without_storage(sizes, dtype);
  if (!DeferredStorage::active()) {
    const memory::Charge charge(memory::Category::kParameters);
    memory::allocate_storage(tensor);
  }
  initializers_[name] = initializer;
  return register_parameter(name, tensor, /*requires_grad=*/true);
}

}  // namespace zero::nn
