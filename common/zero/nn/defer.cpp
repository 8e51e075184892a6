#include <ATen/core/dispatch/Dispatcher.h>
#include <fmt/format.h>
#include <torch/library.h>

#include <algorithm>
#include <unordered_map>

#include <zero/base/error.hpp>
#include <zero/base/scoped.hpp>
#include <zero/memory/storage.hpp>
#include <zero/nn/defer.hpp>

namespace zero::nn {
namespace {

// Meant for modules that get values later. LibTorch itself does nothing with it.
constexpr auto kKey = c10::DispatchKey::DeferredInit;

// A tensor of the constructor that is no parameter yet.
struct Made {
  c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> tensor;
  bool random;  // drawn, or computed from what was drawn
};
using MadeTensors = std::unordered_map<const c10::TensorImpl*, Made>;

thread_local MadeTensors* made = nullptr;  // null: nothing is constructed

template <typename Visit>
bool any_tensor(const c10::IValue& value, const Visit& visit) {
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    return tensor.defined() && tensor.has_storage() && visit(tensor);
  }
  const auto inside = [&](const c10::IValue& element) { return any_tensor(element, visit); };
  return value.isList() && std::ranges::any_of(value.toListRef(), inside);
}

bool has_parameter(const c10::IValue& value) { return any_tensor(value, memory::is_released); }

bool is_random(const at::Tensor& tensor) {
  const auto found = made->find(tensor.unsafeGetTensorImpl());
  return found != made->end() && found->second.random;
}

void drop(const at::Tensor& parameter) {
  if (parameter.is_contiguous()) memory::separate_storage(parameter);
}

// A tensor that requires a gradient has been registered.
void drop_parameters() {
  std::erase_if(*made, [](const auto& item) {
    const at::Tensor tensor(item.second.tensor.lock());
    if (tensor.defined() && tensor.requires_grad() && tensor.is_leaf()) drop(tensor);
    return !tensor.defined() || tensor.requires_grad();
  });
}

template <typename Map>
void map_tensors(torch::jit::Stack& values, const Map& map) {
  for (c10::IValue& value : values) {
    if (value.isTensorList()) {
      auto tensors = value.toTensorVector();
      std::ranges::transform(tensors, tensors.begin(), map);
      value = std::move(tensors);
    } else if (value.isTensor() && value.toTensor().defined()) {
      value = map(value.toTensor());
    }
  }
}

// What an operation returns that found a parameter without values; `found` says so.
torch::jit::Stack result_without_values(const c10::OperatorHandle& operation,
                                        torch::jit::Stack inputs, const c10::Error& found) {
  torch::jit::Stack written;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const auto* const alias = operation.schema().arguments()[i].alias_info();
    if (alias != nullptr && alias->isWrite()) written.push_back(inputs[i]);
  }
  try {
    if (written.empty()) {
      map_tensors(inputs, [](const at::Tensor& tensor) { return tensor.to(at::kMeta); });
      operation.callBoxed(inputs);
      map_tensors(inputs, [](const at::Tensor& shape) {
        return memory::without_storage(shape.sizes(), shape.scalar_type());
      });
      return inputs;
    }
    // An initialisation: it returns what it was to write.
    if (std::ranges::all_of(written, has_parameter)) {
      written.resize(operation.schema().returns().size());
      return written;
    }
  } catch (const c10::Error&) {  // it needs values
  }
  throw Error(fmt::format("{} cannot run while zero::nn::defer() builds a module: {}",
                          operation.schema().name(), found.what_without_backtrace()));
}

void run(const c10::OperatorHandle& operation, torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard below(kKey);
  drop_parameters();
  const auto count = static_cast<std::ptrdiff_t>(operation.schema().arguments().size());
  torch::jit::Stack values(stack->end() - count, stack->end());
  stack->erase(stack->end() - count, stack->end());
  const bool random =
      operation.hasTag(at::Tag::nondeterministic_seeded) ||
      std::ranges::any_of(values, [](const auto& value) { return any_tensor(value, is_random); });
  torch::jit::Stack results = values;
  try {
    operation.callBoxed(results);
  } catch (const c10::Error& found) {
    if (std::ranges::none_of(values, has_parameter)) throw;
    results = result_without_values(operation, values, found);
  }
  for (const c10::IValue& result : results) {
    any_tensor(result, [&](const at::Tensor& tensor) {
      made->insert_or_assign(tensor.unsafeGetTensorImpl(),
                             Made{decltype(Made::tensor)(tensor.getIntrusivePtr()), random});
      return false;
    });
    stack->push_back(result);
  }
}

TORCH_LIBRARY_IMPL(_, DeferredInit, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&run>());
}

}  // namespace

void detail::construct_deferred(const std::function<torch::nn::Module&()>& construct) {
  if (made != nullptr) throw Error("zero::nn::defer() inside another");
  MadeTensors tensors;
  const ScopedValue<MadeTensors*> here(made, &tensors);
  torch::nn::Module* module = nullptr;
  {
    const c10::impl::IncludeDispatchKeyGuard sees_operations(kKey);
    module = &construct();
  }
  for (const at::Tensor& parameter : module->parameters()) drop(parameter);
  for (const auto& buffer : module->named_buffers()) {
    if (!has_parameter(buffer.value()) && !any_tensor(buffer.value(), is_random)) continue;
    throw Error(fmt::format(
        "buffer '{}' is drawn at random, or computed from a parameter, which has no values: build "
        "the module without zero::nn::defer(), or register the buffer after it",
        buffer.key()));
  }
}

}  // namespace zero::nn
