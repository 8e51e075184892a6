
#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/zeros.h>
#include <ATen/record_function.h>
#include <torch/library.h>

#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "accelerator.hpp"
#include "checker.hpp"
#include "generator.hpp"
#include "host_views.hpp"
#include "operations.hpp"
#include "streams.hpp"

namespace zero::testing::emulated {
namespace {

using Stack = torch::jit::Stack;

const std::set<std::string> kSizesDependOnValues = {
    "aten::nonzero",  "aten::masked_select",      "aten::_unique2",         "aten::unique_dim",
    "aten::bincount", "aten::unique_consecutive", "aten::repeat_interleave"};

bool on_device(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == kDevice.type();
}

// One operation over views.
class Call {
 public:
  explicit Call(const c10::OperatorHandle& operation) : operation_(operation) {}

  void run(Stack& stack) {
    const auto& arguments = operation_.schema().arguments();
    const std::size_t first = stack.size() - arguments.size();
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      const auto* const alias = arguments[i].alias_info();
      stack[first + i] = argument(stack[first + i], alias != nullptr && alias->isWrite());
      if (is_generator(*arguments[i].type())) draw(stack[first + i]);
    }
    const c10::StreamId stream = current_stream();
    Checker::get().launch(stream, views_.accesses(), c10::toString(operation_.operator_name()));
    operation_.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
    for (const auto& [view, copy] : copies_) view.copy_(copy);
    views_.take_over_sizes();
    const std::size_t results = operation_.schema().returns().size();
    for (std::size_t i = stack.size() - results; i < stack.size(); ++i) stack[i] = result(stack[i]);
    if (host_waits_ || kSizesDependOnValues.count(operation_.schema().name()) != 0) {
      Checker::get().synchronize(stream);
    }
  }

 private:
  c10::IValue argument(const c10::IValue& value, bool writes) {
    if (value.isTensor()) {
      is_on_device_ = is_on_device_ || on_device(value.toTensor());
      return views_.of(value.toTensor(), writes);
    }
    if (value.isTensorList()) {
      c10::List<at::Tensor> all;
      for (const at::Tensor& t : value.toTensorVector())
        all.push_back(padded(argument(t, writes).toTensor(), writes));
      return all;
    }
    if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> all;
      for (const std::optional<at::Tensor>& t : value.toOptionalTensorVector()) {
        all.push_back(t ? std::optional(argument(*t, writes).toTensor()) : std::nullopt);
      }
      return all;
    }
    if (value.isDevice() && value.toDevice().type() == kDevice.type()) {
      is_on_device_ = true;
      return c10::Device(c10::kCPU);
    }
    return value;
  }

  // What a GPU computes of an element does not depend on where it lies. The CPU's kernels of
  // optimizers compute the last elements of a tensor, which fill no vector, with other bits.
  at::Tensor padded(const at::Tensor& view, bool writes) {
    constexpr std::int64_t kVector = 16;
    const std::int64_t elements = view.numel();
    const bool is_kernel = operation_.schema().name().starts_with("aten::_fused_");
    if (!is_kernel || view.dim() == 0 || elements % kVector == 0) return view;
    const at::Tensor whole =
        at::zeros({(elements + kVector - 1) / kVector * kVector}, view.options());
    const at::Tensor copy = whole.narrow(0, 0, elements).view(view.sizes());
    copy.copy_(view);
    if (writes) copies_.emplace_back(view, copy);
    return whole;
  }

  static bool is_generator(const c10::Type& type) {
    return type.isSubtypeOf(*c10::OptionalType::create(c10::GeneratorType::get()));
  }

  // Replaces the device's generator by one of the CPU.
  static void draw(c10::IValue& value) {
    at::Generator generator = value.isNone() ? default_generator() : value.toGenerator();
    if (generator.device().type() != kDevice.type()) return;
    const std::lock_guard lock(generator.mutex());
    value = generator.get<Generator>()->next();
  }

  c10::IValue result(const c10::IValue& value) {
    if (value.isTensor()) return is_on_device_ ? views_.on_device(value.toTensor()) : value;
    if (value.isTensorList()) {
      c10::List<at::Tensor> all;
      for (const at::Tensor& t : value.toTensorVector()) all.push_back(result(t).toTensor());
      return all;
    }
    host_waits_ = true;
    return value;
  }

  const c10::OperatorHandle& operation_;
  HostViews views_;
  std::vector<std::pair<at::Tensor, at::Tensor>> copies_;  // written in place of views
  bool is_on_device_ = false;
  bool host_waits_ = false;
};

void run_on_views(const c10::OperatorHandle& operation, Stack* stack) {
  Call(operation).run(*stack);
}

// Copies belong to a stream, and others look at sizes only.
bool reads_on_the_host(const at::RecordFunction& function, const std::vector<at::Tensor>& tensors) {
  static const std::set<std::string> kNot = {"aten::empty_like", "aten::_to_copy", "aten::to",
                                             "aten::_copy_from", "aten::is_pinned"};
  if (kNot.count(function.name()) != 0) return false;
  if (std::string(function.name()) != "aten::copy_") return true;
  return tensors.size() == 2 && tensors[0].is_cpu() && tensors[1].is_cpu();
}

std::unique_ptr<at::ObserverContext> look(const at::RecordFunction& function) {
  if (!Checker::get().awaits_copies()) return nullptr;
  const auto schema = function.operator_schema();
  std::vector<at::Tensor> tensors;
  for (std::size_t i = 0; i < function.inputs().size(); ++i) {
    const c10::IValue& value = function.inputs()[i];
    const bool is_view = schema && i < schema->arguments().size() &&
                         schema->arguments()[i].alias_info() != nullptr &&
                         !schema->arguments()[i].alias_info()->isWrite();
    if (!is_view && value.isTensor() && value.toTensor().defined()) {
      tensors.push_back(value.toTensor());
    }
    if (value.isTensorList()) {
      for (const at::Tensor& t : value.toTensorVector()) tensors.push_back(t);
    }
  }
  if (!reads_on_the_host(function, tensors)) return nullptr;
  for (const at::Tensor& t : tensors) {
    if (t.is_cpu()) Checker::get().host_tensor_used(t, function.name());
  }
  return nullptr;
}

// Operations that LibTorch composes of others for a device that does not know them, and of which
// the CPU has a kernel of its own, such as silu_backward: composed, they would have other bits. And
// those on lists of tensors, each of which is one launch on a GPU.
void register_kernels_of_the_cpu() {
  static torch::Library aten(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__,
                             __LINE__);
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto operation = c10::Dispatcher::singleton().findSchema(name);
    if (!operation || name.getNamespace() != "aten") continue;
    const auto has = [&](c10::DispatchKey key) { return operation->hasKernelForDispatchKey(key); };
    const bool is_composed = has(c10::DispatchKey::CompositeImplicitAutograd) ||
                             has(c10::DispatchKey::CompositeExplicitAutograd);
    const bool is_taken = has(c10::DispatchKey::CPU) || name.name.starts_with("aten::_foreach_");
    if (!is_composed || !is_taken || has(c10::DispatchKey::PrivateUse1)) continue;
    aten.impl(c10::toString(name).c_str(),
              torch::CppFunction::makeFromBoxedFunction<&run_on_views>());
  }
}

}  // namespace

void register_fallback() {
  static torch::Library all(torch::Library::IMPL, "_", c10::DispatchKey::PrivateUse1, __FILE__,
                            __LINE__);
  all.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_views>());
  register_kernels_of_the_cpu();
  at::addGlobalCallback(at::RecordFunctionCallback(look).needsInputs(true));
}

}  // namespace zero::testing::emulated
