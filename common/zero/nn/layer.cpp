#include <c10/core/impl/LocalDispatchKeySet.h>

#include <zero/memory/accounting.hpp>
#include <zero/memory/storage.hpp>
#include <zero/nn/layer.hpp>

namespace zero::nn {

std::optional<Initializer> Layer::initializer(const std::string& name) const {
  const auto found = initializers_.find(name);
  return found == initializers_.end() ? std::nullopt : std::optional(found->second);
}

TensorPlacement Layer::placement(const std::string& name) const {
  const auto found = placements_.find(name);
  return found == placements_.end() ? TensorPlacement() : found->second;
}

at::Tensor Layer::add_parameter(const std::string& name, at::IntArrayRef sizes,
                                Initializer initializer, at::ScalarType dtype,
                                const TensorPlacement& placement) {
  at::Tensor tensor = memory::without_storage(placement.part_sizes(sizes, name), dtype);
  // The key of defer(), which would drop the bytes again.
  if (!c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::DeferredInit)) {
    const memory::Charge charge(memory::Category::kParameters);
    memory::allocate_storage(tensor);
  }
  initializers_[name] = initializer;
  if (placement.axis != nullptr) placements_[name] = placement;
  return register_parameter(name, tensor, /*requires_grad=*/true);
}

}  // namespace zero::nn
