#include <c10/util/Type.h>
#include <fmt/format.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <algorithm>
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
// keeps of a parameter, and those tensors, of which some are undefined where it does not keep them.

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

// The functions above, behind LibTorch's base classes.
struct Kind {
  const char* name;
  Numbers (*numbers)(const to::OptimizerOptions&);
  Names (*states)(const to::OptimizerOptions&);
  StateTensors (*tensors)(to::OptimizerParamState&);
  std::int64_t (*steps)(const to::OptimizerParamState&);
  std::unique_ptr<to::OptimizerParamState> (*make_state)(std::int64_t steps);
};

template <typename Options, typename State>
Kind kind(const char* name) {
  // SGD does not count steps.
  constexpr bool kCounts = requires(const State& state) { state.step(); };
  return {
      name,
      [](const to::OptimizerOptions& o) { return numbers_of(static_cast<const Options&>(o)); },
      [](const to::OptimizerOptions& o) { return states_under(static_cast<const Options&>(o)); },
      [](to::OptimizerParamState& s) { return tensors_of(static_cast<State&>(s)); },
      []([[maybe_unused]] const to::OptimizerParamState& s) -> std::int64_t {
        if constexpr (kCounts) return static_cast<const State&>(s).step();
        return 0;
      },
      []([[maybe_unused]] std::int64_t steps) -> std::unique_ptr<to::OptimizerParamState> {
        auto state = std::make_unique<State>();
        if constexpr (kCounts) state->step(steps);
        return state;
      }};
}

Kind kind_of(const to::Optimizer& optimizer) {
  // Exactly these: a class derived from one of them may keep more than is known here.
  const std::type_info& type = typeid(optimizer);
  if (type == typeid(to::SGD)) return kind<to::SGDOptions, to::SGDParamState>("SGD");
  if (type == typeid(to::Adam)) return kind<to::AdamOptions, to::AdamParamState>("Adam");
  if (type == typeid(to::AdamW)) return kind<to::AdamWOptions, to::AdamWParamState>("AdamW");
  if (type == typeid(to::Adagrad)) {
    return kind<to::AdagradOptions, to::AdagradParamState>("Adagrad");
  }
  if (type == typeid(to::RMSprop)) {
    return kind<to::RMSpropOptions, to::RMSpropParamState>("RMSprop");
  }
  throw Error(fmt::format(
      "optim::wrap() cannot take {}: it takes Adagrad, Adam, AdamW, RMSprop and SGD of "
      "torch::optim, whose updates are of each element by itself and whose state it can save; for "
      "another derive a class from zero::optim::Optimizer",
      c10::demangle(type.name())));
}

class TorchOptimizer final : public Optimizer {
 public:
  explicit TorchOptimizer(std::unique_ptr<to::Optimizer> optimizer)
      : kind_(kind_of(*optimizer)), optimizer_(std::move(optimizer)) {
    // Adagrad has made state for parameters that other ranks will own.
    optimizer_->state().clear();
  }

  void step() override {
    const memory::Charge charge(memory::Category::kOptimizer);
    make_adagrad_states();
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
    to::OptimizerParamState* const found = find(parameter);
    if (found == nullptr) return all;
    for (const auto& [name, tensor] : kind_.tensors(*found)) {
      if (tensor->defined()) all[name] = tensor->flatten();
    }
    return all;
  }

  std::int64_t steps(const at::Tensor& parameter) const override {
    const to::OptimizerParamState* const found = find(parameter);
    return found == nullptr ? 0 : kind_.steps(*found);
  }

  std::int64_t state_bytes(const at::Tensor& parameter) const override {
    return static_cast<std::int64_t>(states_of(parameter).size() * parameter.nbytes());
  }

  Settings settings() const override {
    Settings all{std::string("torch ") + kind_.name, {}};
    for (const to::OptimizerParamGroup& group : optimizer_->param_groups()) {
      all.groups.push_back(kind_.numbers(group.options()));
      all.groups.back()["learning_rate"] = group.options().get_lr();
    }
    return all;
  }

  void load_state(const at::Tensor& parameter, std::int64_t steps,
                  const std::map<std::string, at::Tensor>& states) override {
    check_states(parameter, states);
    optimizer_->state().erase(parameter.unsafeGetTensorImpl());
    if (states.empty()) return;
    std::unique_ptr<to::OptimizerParamState> state = kind_.make_state(steps);
    const StateTensors tensors = kind_.tensors(*state);
    for (const auto& [name, values] : states) *tensors.at(name) = values.view(parameter.sizes());
    optimizer_->state()[parameter.unsafeGetTensorImpl()] = std::move(state);
  }

  void set_learning_rate(double rate) override {
    for (auto& group : optimizer_->param_groups()) group.options().set_lr(rate);
  }

 private:
  // LibTorch's makes them in its constructor, for the parameters that it gets there.
  void make_adagrad_states() {
    if (typeid(*optimizer_) != typeid(to::Adagrad)) return;
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
        if (p.is_same(parameter)) return kind_.states(group.options());
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
  to::OptimizerParamState* find(const at::Tensor& parameter) const {
    const auto found = optimizer_->state().find(parameter.unsafeGetTensorImpl());
    return found == optimizer_->state().end() ? nullptr : found->second.get();
  }

  Kind kind_;
  std::unique_ptr<to::Optimizer> optimizer_;
};

}  // namespace

std::unique_ptr<Optimizer> wrap(std::unique_ptr<torch::optim::Optimizer> optimizer) {
  return std::make_unique<TorchOptimizer>(std::move(optimizer));
}

}  // namespace zero::optim
