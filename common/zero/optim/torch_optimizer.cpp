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

using Names = std::vector<std::string>;
using Numbers = std::map<std::string, double>;
using StateTensors = std::map<std::string, at::Tensor*>;

// The numbers that an optimizer goes by beside its learning rate, the names of the tensors that it
// keeps of a parameter, and those tensors. A tensor that it does not keep is undefined.

Numbers numbers_of(const to::SGDOptions& o) {
  return {{"momentum", o.momentum()},
          {"dampening", o.dampening()},
          {"weight_decay", o.weight_decay()},
          {"nesterov", o.nesterov() ? 1 : 0}};
}
Names states_under(const to::SGDOptions& o) {
  return o.momentum() == 0 ? Names{} : Names{"momentum_buffer"};
}
StateTensors tensors_of(to::SGDParamState& s) {
  return {{"momentum_buffer", &s.momentum_buffer()}};
}

Numbers numbers_of(const to::AdagradOptions& o) {
  return {{"lr_decay", o.lr_decay()},
          {"weight_decay", o.weight_decay()},
          {"initial_accumulator_value", o.initial_accumulator_value()},
          {"epsilon", o.eps()}};
}
Names states_under(const to::AdagradOptions&) { return {"sum"}; }
StateTensors tensors_of(to::AdagradParamState& s) { return {{"sum", &s.sum()}}; }

Numbers numbers_of(const to::RMSpropOptions& o) {
  return {{"alpha", o.alpha()},
          {"epsilon", o.eps()},
          {"weight_decay", o.weight_decay()},
          {"momentum", o.momentum()},
          {"centered", o.centered() ? 1 : 0}};
}
Names states_under(const to::RMSpropOptions& o) {
  Names names = {"square_avg"};
  if (o.momentum() > 0) names.emplace_back("momentum_buffer");
  if (o.centered()) names.emplace_back("grad_avg");
  return names;
}
StateTensors tensors_of(to::RMSpropParamState& s) {
  return {{"square_avg", &s.square_avg()},
          {"momentum_buffer", &s.momentum_buffer()},
          {"grad_avg", &s.grad_avg()}};
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
template <typename Options>
Names states_under(const Options& o) {
  return o.amsgrad() ? Names{"exp_avg", "exp_avg_sq", "max_exp_avg_sq"}
                     : Names{"exp_avg", "exp_avg_sq"};
}
template <typename State>
StateTensors tensors_of(State& s) {
  return {{"exp_avg", &s.exp_avg()},
          {"exp_avg_sq", &s.exp_avg_sq()},
          {"max_exp_avg_sq", &s.max_exp_avg_sq()}};
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
    for (const auto& [name, tensor] : tensors_of(*found)) {
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
    return static_cast<std::int64_t>(states_of(parameter).size() * parameter.nbytes());
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
    check_states(parameter, states);
    optimizer_->state().erase(parameter.unsafeGetTensorImpl());
    if (states.empty()) return;
    auto state = std::make_unique<State>();
    if constexpr (kCounts) state->step(steps);
    const StateTensors tensors = tensors_of(*state);
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

  // Names of the states of a parameter that is held.
  Names states_of(const at::Tensor& parameter) const {
    for (const to::OptimizerParamGroup& group : optimizer_->param_groups()) {
      for (const at::Tensor& p : group.params()) {
        if (p.is_same(parameter)) return states_under(options_of(group));
      }
    }
    return {};
  }

  void check_states(const at::Tensor& parameter,
                    const std::map<std::string, at::Tensor>& states) const {
    const Names names = states_of(parameter);
    const auto fits = [&](const std::string& name) {
      const auto found = states.find(name);
      return found != states.end() && found->second.numel() == parameter.numel() &&
             found->second.scalar_type() == parameter.scalar_type();
    };
    if (states.empty()) return;
    if (states.size() == names.size() && std::ranges::all_of(names, fits)) return;
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

template <typename Options, typename State>
std::unique_ptr<Optimizer> wrapped(const char* name, std::unique_ptr<to::Optimizer>& optimizer) {
  return std::make_unique<TorchOptimizer<Options, State>>(name, std::move(optimizer));
}

}  // namespace

std::unique_ptr<Optimizer> wrap(std::unique_ptr<torch::optim::Optimizer> optimizer) {
  if (optimizer == nullptr) throw Error("optim::wrap() of no optimizer: the pointer is null");
  // Exactly these: a class derived from one of them may keep more than is known here.
  const to::Optimizer& known = *optimizer;
  const std::type_info& type = typeid(known);
  if (type == typeid(to::SGD)) return wrapped<to::SGDOptions, to::SGDParamState>("SGD", optimizer);
  if (type == typeid(to::Adam)) {
    return wrapped<to::AdamOptions, to::AdamParamState>("Adam", optimizer);
  }
  if (type == typeid(to::AdamW)) {
    return wrapped<to::AdamWOptions, to::AdamWParamState>("AdamW", optimizer);
  }
  if (type == typeid(to::Adagrad)) {
    return wrapped<to::AdagradOptions, to::AdagradParamState>("Adagrad", optimizer);
  }
  if (type == typeid(to::RMSprop)) {
    return wrapped<to::RMSpropOptions, to::RMSpropParamState>("RMSprop", optimizer);
  }
  throw Error(fmt::format(
      "optim::wrap() cannot take {}: it takes Adagrad, Adam, AdamW, RMSprop and SGD of "
      "torch::optim, whose updates are of each element by itself and whose state it can save; for "
      "another derive a class from zero::optim::Optimizer",
      c10::demangle(type.name())));
}

}  // namespace zero::optim
