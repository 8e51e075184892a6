#include <c10/util/intrusive_ptr.h>

#include <mutex>
#include <unordered_map>
#include <utility>

#include <zero/memory/accounting.hpp>
#include <zero/nn/gradient_destination.hpp>
#include <zero/nn/parameters.hpp>

namespace zero::nn {
namespace {

// A provider, and a weak reference that reserves the tensor's address, so that an entry never
// applies to a later tensor at the same address.
struct Entry {
  c10::weak_intrusive_ptr<at::TensorImpl, at::UndefinedTensorImpl> tensor;
  GradientProvider provider;
};

std::mutex providers_mutex;
std::unordered_map<const void*, Entry> providers;  // by tensor; guarded by it
std::size_t alive = 0;  // how many were left when the others were dropped last; guarded by it

GradientProvider find_provider(const at::Tensor& parameter) {
  const std::lock_guard lock(providers_mutex);
  const auto found = providers.find(parameter.unsafeGetTensorImpl());
  return found == providers.end() ? GradientProvider() : found->second.provider;
}

at::Tensor provided(const at::Tensor& parameter, const GradientProvider& provider) {
  at::Tensor tensor = provider();
  TORCH_INTERNAL_ASSERT(tensor.defined() && tensor.sizes() == parameter.sizes() &&
                            tensor.scalar_type() == parameter.scalar_type() &&
                            tensor.device() == parameter.device(),
                        "a gradient provider must give a tensor like the parameter");
  return tensor;
}

}  // namespace

bool goes_to_autograd(const at::Tensor& parameter) {
  return !parameter.is_leaf() || has_gradient_hooks(parameter);
}

GradientDestination gradient_destination(const at::Tensor& parameter) {
  if (goes_to_autograd(parameter)) {
    const at::Tensor tensor =
        at::empty(parameter.sizes(), parameter.options().requires_grad(false));
    return {tensor, /*fresh=*/true, /*to_autograd=*/tensor};
  }
  at::Tensor& gradient = parameter.mutable_grad();
  if (gradient.defined()) return {gradient, /*fresh=*/false};
  if (const GradientProvider provider = find_provider(parameter)) {
    gradient = provided(parameter, provider);
  } else {
    const memory::Charge charge(memory::Category::kGradients);
    gradient = at::empty(parameter.sizes(), parameter.options().requires_grad(false));
  }
  return {gradient, /*fresh=*/true};
}

void set_gradient_provider(const at::Tensor& parameter, GradientProvider provider) {
  const std::lock_guard lock(providers_mutex);
  providers.erase(parameter.unsafeGetTensorImpl());
  if (!provider) return;
  // With each call it would take quadratic time.
  if (providers.size() > 2 * alive) {
    std::erase_if(providers, [](const auto& entry) { return entry.second.tensor.expired(); });
    alive = providers.size();
  }
  Entry entry{decltype(Entry::tensor)(parameter.getIntrusivePtr()), std::move(provider)};
  providers.emplace(parameter.unsafeGetTensorImpl(), std::move(entry));
}

}  // namespace zero::nn
