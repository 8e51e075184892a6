#include <c10/util/Type.h>
#include <fmt/format.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <type_traits>
#include <typeinfo>
#include <utility>

#include <zero/base/error.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/optim/torch_optimizer.hpp>

namespace zero::optim {
namespace {

namespace to = torch::optim;

using Numbers = std::map<std::string, double>;
using StateTensors = std::map<std::string, at::Tensor*>;

// The numbers that an optimizer goes by beside its learning rate, and the tensors that it keeps of
// a parameter, by name.

Numbers numbers_of(const to::SGDOptions& o) {
  return {{"momentum", o.momentum()},
          {"dampening", o.dampening()},
          {"weight_decay", o.weight_decay()},
          {"nesterov", o.nesterov() ? 1 : 0}};
}
StateTensors tensors_of(const to::SGDOptions& o, to::SGDParamState& s) {
  if (o.momentum() == 0) return {};
  return {{"momentum_buffer", &s.momentum_buffer()}};
}

Numbers numbers_of(const to::AdagradOptions& o) {
  return {{"lr_decay", o.lr_decay()},
          {"weight_decay", o.weight_decay()},
          {"initial_accumulator_value", o.initial_accumulator_value()},
          {"epsilon", o.eps()}};
}
StateTensors tensors_of(const to::AdagradOptions&, to::AdagradParamState& s) {
  return {{"sum", &s.sum()}};
}

Numbers numbers_of(const to::RMSpropOptions& o) {
  return {{"alpha", o.alpha()},
          {"epsilon", o.eps()},
          {"weight_decay", o.weight_decay()},
          {"momentum", o.momentum()},
          {"centered", o.centered() ? 1 : 0}};
}
StateTensors tensors_of(const to::RMSpropOptions& o, to::RMSpropParamState& s) {
  StateTensors tensors = {{"square_avg", &s.square_avg()}};
  if (o.momentum() > 0) tensors["momentum_buffer"] = &s.momentum_buffer();
  if (o.centered()) tensors["grad_avg"] = &s.grad_avg();
  return tensors;
}

// Adam and AdamW.
template <typename Options>
Numbers numbers_of(const Options& o) {
  return {{"beta1", std::get<0>(o.betas())},
          {"beta2", std::get<1>(o.betas())},
          {"epsilon", o.eps()},
          {"weight_decay", o.weight_decay()},
          {"amsgrad", o.amsgrad() ? 1 : 0}};
}
template <typename Options, typename State>
StateTensors tensors_of(const Options& o, State& s) {
  StateTensors tensors = {{"exp_avg", &s.exp_avg()}, {"exp_avg_sq", &s.exp_avg_sq()}};
  if (o.amsgrad()) tensors["max_exp_avg_sq"] = &s.max_exp_avg_sq();
  return tensors;
}

template <typename Options, typename State>
class TorchOptimizer final : public Optimizer {
 public:
  TorchOptimizer(const char* name, std::unique_ptr<to::Optimizer> optimizer)
      : name_(name), optimizer_(std::move(optimizer)) {
    // Adagrad has made state for parameters that other ranks will own.
    optimizer_->state().clear();
  }

  void step() override {
    const memory::Charge charge(memory::Category::kOptimizer);
    if constexpr (std::is_same_v<State, to::AdagradParamState>) make_adagrad_states();
    optimizer_->step();
  }

  void replace(const std::function<at::Tensor(const at::Tensor&)>& with) override {
    for (to::OptimizerParamGroup& group : optimizer_->param_groups()) {
      for (at::Tensor& p : group.params()) {
        const at::Tensor other = with(p);
        if (other.is_same(p)) continue;
        optimizer_->state().erase(p.unsafeGetTensorImpl());
        p = other;
      }
      std::erase_if(group.params(), [](const at::Tensor& p) { return !p.defined(); });
    }
  }

  std::map<std::string, at::Tensor> state(const at::Tensor& parameter) const override {
    std::map<std::string, at::Tensor> all;
    State* const found = find(parameter);
    if (found == nullptr) return all;
    for (const auto& [name, tensor] : states_of(parameter, *found)) {
      if (tensor->defined()) all[name] = tensor->flatten();
    }
    return all;
  }

  std::int64_t steps(const at::Tensor& parameter) const override {
    if constexpr (kCounts) {
      if (const State* const found = find(parameter)) return found->step();
    }
    return 0;
  }

  std::int64_t state_bytes(const at::Tensor& parameter) const override {
    State none;
    return static_cast<std::int64_t>(states_of(parameter, none).size() * parameter.nbytes());
  }

  Settings settings() const override {
    Settings all{std::string("torch ") + name_, {}};
    for (const to::OptimizerParamGroup& group : optimizer_->param_groups()) {
      all.groups.push_back(numbers_of(options_of(group)));
      all.groups.back()["learning_rate"] = group.options().get_lr();
    }
    return all;
  }

  void load_state(const at::Tensor& parameter, std::int64_t steps,
                  const std::map<std::string, at::Tensor>& states) override {
    auto state = std::make_unique<State>();
    const StateTensors tensors = states_of(parameter, *state);
    check_states(tensors, parameter, states);
    optimizer_->state().erase(parameter.unsafeGetTensorImpl());
    if (states.empty()) return;
    if constexpr (kCounts) state->step(steps);
    for (const auto& [name, values] : states) *tensors.at(name) = values.view(parameter.sizes());
    optimizer_->state()[parameter.unsafeGetTensorImpl()] = std::move(state);
  }

  void set_learning_rate(double rate) override {
    set_learning_rates(std::vector<double>(optimizer_->param_groups().size(), rate));
  }

  void set_learning_rates(const std::vector<double>& rates) override {
    auto& groups = optimizer_->param_groups();
    check_rates(rates, groups.size());
    for (std::size_t g = 0; g < rates.size(); ++g) groups[g].options().set_lr(rates[g]);
  }

  std::size_t group_of(const at::Tensor& parameter) const override {
    const auto& groups = optimizer_->param_groups();
    const auto holds = [&](const to::OptimizerParamGroup& group) {
      return std::ranges::any_of(group.params(),
                                 [&](const at::Tensor& p) { return p.is_same(parameter); });
    };
    return static_cast<std::size_t>(std::ranges::find_if(groups, holds) - groups.begin());
  }

 private:
  // SGD does not count steps.
  static constexpr bool kCounts = requires(const State& state) { state.step(); };

  static const Options& options_of(const to::OptimizerParamGroup& group) {
    return static_cast<const Options&>(group.options());
  }

  // LibTorch's makes them in its constructor, for the parameters that it gets there.
  void make_adagrad_states() {
    const auto& defaults = static_cast<const to::AdagradOptions&>(optimizer_->defaults());
    for (const to::OptimizerParamGroup& group : optimizer_->param_groups()) {
      for (const at::Tensor& p : group.params()) {
        auto& state = optimizer_->state()[p.unsafeGetTensorImpl()];
        if (state != nullptr || !p.grad().defined()) continue;
        auto fresh = std::make_unique<to::AdagradParamState>();
        fresh->sum(at::full_like(p.detach(), defaults.initial_accumulator_value()));
        state = std::move(fresh);
      }
    }
  }

  // None of a parameter that is not held.
  StateTensors states_of(const at::Tensor& parameter, State& state) const {
    const auto& groups = optimizer_->param_groups();
    const std::size_t group = group_of(parameter);
    if (group == groups.size()) return {};
    return tensors_of(options_of(groups[group]), state);
  }

  static void check_states(const StateTensors& tensors, const at::Tensor& parameter,
                           const std::map<std::string, at::Tensor>& states) {
    const auto fits = [&](const auto& state) {
      return tensors.contains(state.first) && state.second.numel() == parameter.numel() &&
             state.second.scalar_type() == parameter.scalar_type();
    };
    if (states.empty()) return;
    if (states.size() == tensors.size() && std::ranges::all_of(states, fits)) return;
    throw Error("these states are not of this optimizer and this parameter");
  }

  // Null before the first update.
  State* find(const at::Tensor& parameter) const {
    const auto found = optimizer_->state().find(parameter.unsafeGetTensorImpl());
    return found == optimizer_->state().end() ? nullptr : static_cast<State*>(found->second.get());
  }

  const char* name_;
  std::unique_ptr<to::Optimizer> optimizer_;
};

// Null if it is of another class. A class derived from this one may keep more than is known here.
template <typename Torch, typename Options, typename State>
std::unique_ptr<Optimizer> wrapped(const char* name, std::unique_ptr<to::Optimizer>& optimizer) {
  const to::Optimizer& known = *optimizer;
  if (typeid(known) != typeid(Torch)) return nullptr;
  return std::make_unique<TorchOptimizer<Options, State>>(name, std::move(optimizer));
}

}  // namespace

std::unique_ptr<Optimizer> wrap(std::unique_ptr<torch::optim::Optimizer> optimizer) {
  if (optimizer == nullptr) throw Error("optim::wrap() of no optimizer: the pointer is null");
  using Wrapping = std::unique_ptr<Optimizer> (*)(const char*, std::unique_ptr<to::Optimizer>&);
  constexpr std::pair<const char*, Wrapping> kKnown[] = {
      {"SGD", &wrapped<to::SGD, to::SGDOptions, to::SGDParamState>},
      {"Adam", &wrapped<to::Adam, to::AdamOptions, to::AdamParamState>},
      {"AdamW", &wrapped<to::AdamW, to::AdamWOptions, to::AdamWParamState>},
      {"Adagrad", &wrapped<to::Adagrad, to::AdagradOptions, to::AdagradParamState>},
      {"RMSprop", &wrapped<to::RMSprop, to::RMSpropOptions, to::RMSpropParamState>}};
  for (const auto& [name, wrapping] : kKnown) {
    if (auto ours = wrapping(name, optimizer)) return ours;
  }
  const to::Optimizer& other = *optimizer;
  throw Error(fmt::format(
      "optim::wrap() cannot take {}: it takes Adagrad, Adam, AdamW, RMSprop and SGD of "
      "torch::optim, whose updates are of each element by itself and whose state it can save; for "
      "another derive a class from zero::optim::Optimizer",
      c10::demangle(typeid(other).name())));
}

}  // namespace zero::optim
