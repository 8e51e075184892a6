#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/SequenceNumber.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <c10/util/ScopeExit.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <array>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_set>
#include <utility>

#include <zero/base/error.hpp>
#include <zero/nn/checkpoint.hpp>
#include <zero/nn/gradient_destination.hpp>
#include <zero/nn/once_differentiable.hpp>
#include <zero/nn/read_watch.hpp>
#include <zero/nn/unit.hpp>

namespace zero::nn {
namespace {

using torch::autograd::AccumulateGrad;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::Node;
using torch::autograd::variable_list;

// The state of LibTorch's default generators of the CPU and of the devices of `tensors`. It is no
// tensor, so that memory accounts do not count it.
class RandomState {
 public:
  explicit RandomState(const variable_list& tensors) {
    std::vector<at::Generator> generators = {at::detail::getDefaultCPUGenerator()};
    for (const at::Tensor& tensor : tensors) {
      const at::Device device = tensor.device();
      if (!at::isAccelerator(device.type())) continue;
      generators.push_back(at::globalContext().defaultGenerator(device));
    }
    for (at::Generator& generator : generators) {
      const std::lock_guard lock(generator.mutex());
      states_.emplace_back(generator, generator.clone());
    }
  }

  // Makes the generators repeat what they drew after this state was taken.
  void restore() const {
    for (auto [generator, then] : states_) {
      const std::lock_guard lock(generator.mutex());
      if (generator.device().is_cpu()) {
        auto* const cpu = generator.get<at::CPUGeneratorImpl>();
        auto* const before = then.get<at::CPUGeneratorImpl>();
        cpu->set_engine(before->engine());
        cpu->set_next_float_normal_sample(before->next_float_normal_sample());
        cpu->set_next_double_normal_sample(before->next_double_normal_sample());
      } else {
        generator.set_state(then.get_state());
      }
    }
  }

 private:
  std::vector<std::pair<at::Generator, at::Generator>> states_;  // each beside a copy of then
};

// The autocast settings of this thread at construction, for all devices.
class AutocastState {
 public:
  AutocastState() {
    for (std::size_t i = 0; i < kDevices.size(); ++i) {
      enabled_[i] = at::autocast::is_autocast_enabled(kDevices[i]);
      dtype_[i] = at::autocast::get_autocast_dtype(kDevices[i]);
    }
  }

  // `with_cache` = false turns LibTorch's cache of cast weights off: weights may have changed
  // since, and it then has old values.
  void restore(bool with_cache = true) const {
    for (std::size_t i = 0; i < kDevices.size(); ++i) {
      at::autocast::set_autocast_enabled(kDevices[i], enabled_[i]);
      at::autocast::set_autocast_dtype(kDevices[i], dtype_[i]);
    }
    at::autocast::set_autocast_cache_enabled(cache_ && with_cache);
  }

 private:
  static constexpr const auto& kDevices = at::autocast::_AUTOCAST_SUPPORTED_DEVICES;

  std::array<bool, kDevices.size()> enabled_{};
  std::array<at::ScalarType, kDevices.size()> dtype_{};
  bool cache_ = at::autocast::is_autocast_cache_enabled();
};

// State kept between forward and backward besides the inputs, which autograd keeps itself.
struct CheckpointedBody : torch::CustomClassHolder {
  CheckpointBody body;
  variable_list parameters;
  AutocastState autocast;             // of the first run
  std::optional<RandomState> random;  // before it
  at::Tensor output;                  // only until the first run returns it
  CheckpointOptions options;
  std::shared_ptr<KeptInputs> elsewhere;          // inputs that autograd does not keep
  std::vector<at::TensorOptions> kinds;           // of the inputs
  std::vector<std::vector<std::int64_t>> shapes;  // of the inputs
  std::vector<bool> require_gradients;
};

bool is_partitioned(const at::Tensor& input, const CheckpointOptions& options) {
  return options.partition_over != nullptr && input.is_floating_point();
}

// What is kept of an input: it itself, or a copy of this rank's part. A view of the part would keep
// all of it in memory.
at::Tensor kept(const at::Tensor& input, const CheckpointOptions& options) {
  if (!is_partitioned(input, options)) return input;
  const dist::Communicator& axis = *options.partition_over;
  const std::int64_t size = input.numel() / axis.size();
  return input.detach().reshape({-1}).narrow(0, axis.rank() * size, size).clone();
}

// The input again, from what was kept.
at::Tensor restored(const at::Tensor& kept, const CheckpointedBody& part, std::size_t i) {
  if (!is_partitioned(kept, part.options)) return kept;
  const at::Tensor whole = at::empty(part.shapes[i], part.kinds[i].requires_grad(false));
  part.options.partition_over->all_gather(whole, kept, dist::Purpose::kActivation).wait();
  return whole;
}

// Takes what leaves the device out of `kept`.
std::shared_ptr<KeptInputs> move_away(variable_list& kept, const CheckpointOptions& options) {
  variable_list moved;
  for (at::Tensor& tensor : kept) {
    if (!tensor.is_cpu() && tensor.is_floating_point()) moved.push_back(std::exchange(tensor, {}));
  }
  return moved.empty() ? nullptr : options.keep(moved);
}

variable_list back_from_elsewhere(variable_list kept, const CheckpointedBody& part) {
  if (part.elsewhere == nullptr) return kept;
  const variable_list moved =
      part.elsewhere->take(/*again=*/torch::autograd::get_current_graph_task_keep_graph());
  auto next = moved.begin();
  for (at::Tensor& tensor : kept) {
    if (!tensor.defined()) tensor = *next++;
  }
  return kept;
}

// The inputs as leaves of a separate graph, so that backward through the part ends at them.
variable_list as_leaves(const variable_list& inputs, const std::vector<bool>& require_gradients) {
  variable_list leaves;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    leaves.push_back(inputs[i].detach().requires_grad_(require_gradients[i]));
  }
  return leaves;
}

void check_parts(const variable_list& inputs, const CheckpointOptions& options) {
  if (options.partition_over == nullptr) return;
  const int ranks = options.partition_over->size();
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!is_partitioned(inputs[i], options) || inputs[i].numel() % ranks == 0) continue;
    throw Error(
        fmt::format("input {} of a checkpoint has {} elements, which cannot be split evenly over "
                    "{} tensor ranks",
                    i, inputs[i].numel(), ranks));
  }
}

// The leaves of the graph of `output`, without `inputs`. Nodes older than `began` belong to a graph
// outside the part, which a second backward would run through: an error.
variable_list parameters_under(const at::Tensor& output, const variable_list& inputs,
                               std::uint64_t began) {
  variable_list parameters;
  const auto root = torch::autograd::impl::gradient_edge(output);
  std::vector<Node*> to_visit = {root.function.get()};
  std::unordered_set<Node*> seen;
  while (!to_visit.empty()) {
    Node* node = to_visit.back();
    to_visit.pop_back();
    if (node == nullptr || !seen.insert(node).second) continue;
    if (const auto* leaf = dynamic_cast<AccumulateGrad*>(node)) {
      const auto is_leaf = [leaf](const at::Tensor& x) { return x.is_same(leaf->variable); };
      if (std::none_of(inputs.begin(), inputs.end(), is_leaf)) {
        parameters.push_back(leaf->variable);
      }
      continue;
    }
    if (node->sequence_nr() < began) {
      throw Error(fmt::format(
          "the body of a checkpoint reads a tensor that requires a gradient (from {}) and is "
          "neither one of its inputs nor a parameter: give it as an input",
          node->name()));
    }
    for (const auto& edge : node->next_edges()) to_visit.push_back(edge.function.get());
  }
  return parameters;
}

// While it lives, a backward pass calls none of the hooks of `parameter`: the outer pass does. A
// gradient that they may see is put into `gradient`, for the outer pass to add it to those of other
// uses.
class WithoutHooks {
 public:
  WithoutHooks(const at::Tensor& parameter, at::Tensor& gradient) : parameter_(parameter) {
    takes_ = goes_to_autograd(parameter);
    if (takes_) before_.push_back(std::make_unique<Take>(gradient));
    swap();
  }
  ~WithoutHooks() { swap(); }
  WithoutHooks(const WithoutHooks&) = delete;
  WithoutHooks& operator=(const WithoutHooks&) = delete;

 private:
  struct Take final : torch::autograd::FunctionPreHook {
    explicit Take(at::Tensor& place) : gradient(place) {}
    variable_list operator()(const variable_list& gradients) override {
      gradient = gradients.front();
      return {at::Tensor()};
    }
    at::Tensor& gradient;
  };

  void swap() {
    if (takes_) torch::autograd::impl::hooks(parameter_).swap(before_);
    torch::autograd::impl::post_acc_grad_hooks(parameter_).swap(after_);
  }

  const at::Tensor& parameter_;
  bool takes_ = false;
  std::vector<std::unique_ptr<torch::autograd::FunctionPreHook>> before_;
  std::unique_ptr<torch::autograd::PostAccumulateGradHook> after_;
};

// The parameters are inputs of the function, so that autograd counts this use of them and calls
// their hooks after the last one. The backward through the part writes their gradients; only those
// that hooks may see are returned here.
struct CheckpointFunction : Function<CheckpointFunction> {
  static at::Tensor forward(AutogradContext* context,
                            const c10::intrusive_ptr<CheckpointedBody>& part, at::TensorList inputs,
                            at::TensorList /*parameters*/) {
    variable_list to_keep;
    for (const at::Tensor& input : inputs) to_keep.push_back(kept(input, part->options));
    if (part->options.keep) part->elsewhere = move_away(to_keep, part->options);
    context->save_for_backward(std::move(to_keep));
    context->saved_data["part"] = c10::IValue::make_capsule(part);
    return std::exchange(part->output, at::Tensor());
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    require_once_differentiable("checkpoint");
    const auto holder = context->saved_data["part"].toCapsule();
    const auto& part = static_cast<const CheckpointedBody&>(*holder);
    variable_list inputs = back_from_elsewhere(context->get_saved_variables(), part);
    for (std::size_t i = 0; i < inputs.size(); ++i) inputs[i] = restored(inputs[i], part, i);
    const variable_list leaves = as_leaves(inputs, part.require_gradients);
    variable_list wanted;
    for (std::size_t i = 0; i < leaves.size(); ++i) {
      if (context->needs_input_grad(i)) wanted.push_back(leaves[i]);
    }
    variable_list result(1 + leaves.size() + part.parameters.size());
    std::list<WithoutHooks> without_hooks;
    for (std::size_t p = 0; p < part.parameters.size(); ++p) {
      if (!context->needs_input_grad(leaves.size() + p)) continue;
      wanted.push_back(part.parameters[p]);
      without_hooks.emplace_back(part.parameters[p], result[1 + leaves.size() + p]);
    }
    if (wanted.empty()) return result;
    run_again(part, leaves, wanted, gradients[0]);
    for (std::size_t i = 0; i < leaves.size(); ++i) result[1 + i] = leaves[i].grad();
    return result;
  }

 private:
  static void run_again(const CheckpointedBody& part, const variable_list& leaves,
                        const variable_list& wanted, const at::Tensor& gradient) {
    const c10::AutoGradMode with_graph(true);
    at::Tensor output;
    {
      // With the random numbers and the autocast of the first run.
      const AutocastState autocast;
      const RandomState random(leaves);
      const auto restore = c10::make_scope_exit([&] {
        autocast.restore();
        random.restore();
      });
      part.random->restore();
      part.autocast.restore(/*with_cache=*/false);
      output = part.body(leaves);
    }
    const SuppressGradientHooks silent;
    torch::autograd::backward({output}, {gradient}, /*retain_graph=*/false,
                              /*create_graph=*/false, wanted);
  }
};

}  // namespace

at::Tensor checkpoint(const CheckpointBody& body, const std::vector<at::Tensor>& inputs,
                      const CheckpointOptions& options) {
  if (inputs.empty())
    throw Error("a checkpoint needs at least one input: there is nothing to keep");
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].defined()) throw Error(fmt::format("input {} of a checkpoint is undefined", i));
  }
  if (!c10::GradMode::is_enabled()) return body(inputs);
  check_parts(inputs, options);
  const auto part = c10::make_intrusive<CheckpointedBody>();
  part->body = body;
  part->options = options;
  for (const at::Tensor& input : inputs) {
    part->kinds.push_back(input.options());
    part->shapes.push_back(input.sizes().vec());
    part->require_gradients.push_back(input.requires_grad());
  }
  {
    const variable_list leaves = as_leaves(inputs, part->require_gradients);
    const std::uint64_t began = at::sequence_number::peek();
    part->random.emplace(leaves);
    const at::Tensor output = [&] {
      const ReadWatch::Part here;
      return body(leaves);
    }();
    part->parameters = parameters_under(output, leaves, began);
    part->output = output.detach();
  }
  return CheckpointFunction::apply(part, at::TensorList(inputs), at::TensorList(part->parameters));
}

}  // namespace zero::nn
