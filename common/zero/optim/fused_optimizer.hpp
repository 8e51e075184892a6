#pragma once

// Private to zero/optim: what AdamW and SGD have in common.

#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <tuple>
#include <utility>

#include <zero/base/error.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/memory/storage.hpp>
#include <zero/optim/optimizer.hpp>
#include <zero/optim/padded_kernel.hpp>
#include <zero/optim/slots.hpp>

namespace zero::optim {

/// A parameter and its state.
struct Slot {
  at::Tensor parameter;
  std::size_t group = 0;
  std::int64_t steps = 0;
  std::vector<at::Tensor> states;  // empty before the first step
};

/// Slots, groups, lazily made states, and one kernel call for all parameters of a group that have
/// had the same number of steps.
template <typename Options>
class FusedOptimizer : public Optimizer {
 public:
  explicit FusedOptimizer(std::vector<Group<Options>> groups) {
    for (std::size_t g = 0; g < groups.size(); ++g) {
      options_.push_back(groups[g].options);
      for (const at::Tensor& parameter : groups[g].parameters) slots_.add({parameter, g, 0, {}});
    }
  }

  void step() override {
    const at::NoGradGuard no_grad;
    // A kernel takes one dtype at a time.
    std::map<std::tuple<std::size_t, std::int64_t, at::ScalarType>, std::vector<Operands>> alike;
    for (Slot& slot : slots_) {
      if (!slot.parameter.grad().defined()) continue;
      if (slot.states.empty()) make_states(slot);
      ++slot.steps;
      Operands operands{flat(slot.parameter), flat(slot.parameter.grad())};
      for (const at::Tensor& state : slot.states) operands.push_back(state);
      alike[{slot.group, slot.steps, slot.parameter.scalar_type()}].push_back(std::move(operands));
    }
    for (const auto& [key, parameters] : alike) {
      run_padded(parameters, [&, &k = key](const std::vector<std::vector<at::Tensor>>& lists) {
        update(lists, options_[std::get<0>(k)], std::get<1>(k));
      });
    }
  }

  void replace(const std::function<at::Tensor(const at::Tensor&)>& with) override {
    slots_.replace(with, [](Slot& slot, const at::Tensor& other) {
      slot = {other, slot.group, 0, {}};
    });
  }

  std::map<std::string, at::Tensor> state(const at::Tensor& parameter) const override {
    const Slot& slot = slots_.of(parameter);
    if (slot.states.empty()) return {};
    const std::vector<std::string> names = state_names(options_[slot.group]);
    std::map<std::string, at::Tensor> result;
    for (std::size_t i = 0; i < names.size(); ++i) result[names[i]] = slot.states[i];
    return result;
  }

  std::int64_t steps(const at::Tensor& parameter) const override {
    return slots_.of(parameter).steps;
  }

  std::int64_t state_bytes(const at::Tensor& parameter) const override {
    const Slot* slot = slots_.find(parameter);
    if (slot == nullptr) return 0;
    const std::size_t states = state_names(options_[slot->group]).size();
    return static_cast<std::int64_t>(states * parameter.nbytes());
  }

  void load_state(const at::Tensor& parameter, std::int64_t steps,
                  const std::map<std::string, at::Tensor>& states) override {
    Slot* slot = slots_.find(parameter);
    if (slot == nullptr) throw Error("state for a parameter that this optimizer does not hold");
    const std::vector<std::string> names = state_names(options_[slot->group]);
    std::vector<at::Tensor> ordered;
    for (const std::string& name : names) {
      if (const auto found = states.find(name); found != states.end()) {
        check_state(name, found->second, parameter);
        ordered.push_back(found->second);
      }
    }
    const std::size_t wanted = steps == 0 ? 0 : names.size();
    if (steps < 0 || ordered.size() != states.size() || ordered.size() != wanted) {
      throw Error(fmt::format("a parameter after {} updates needs these states: {}; {} were given",
                              steps, fmt::join(names, ", "), states.size()));
    }
    slot->steps = steps;
    slot->states = std::move(ordered);
  }

  void set_learning_rate(double rate) override {
    set_learning_rates(std::vector<double>(options_.size(), rate));
  }

  void set_learning_rates(const std::vector<double>& rates) override {
    check_rates(rates, options_.size());
    for (std::size_t g = 0; g < rates.size(); ++g) options_[g].learning_rate = rates[g];
  }

  std::size_t group_of(const at::Tensor& parameter) const override {
    return slots_.of(parameter).group;
  }

 protected:
  /// The states that are kept for each parameter under these options.
  virtual std::vector<std::string> state_names(const Options& options) const = 0;

  /// lists: parameters, gradients, then one list per state.
  virtual void update(const std::vector<std::vector<at::Tensor>>& lists, const Options& options,
                      std::int64_t step) = 0;

  const std::vector<Options>& options() const { return options_; }

 private:
  static at::Tensor flat(const at::Tensor& tensor) { return memory::raw(tensor).view({-1}); }

  void make_states(Slot& slot) const {
    const memory::Charge charge(memory::Category::kOptimizer);
    for (std::size_t i = 0; i < state_names(options_[slot.group]).size(); ++i) {
      slot.states.push_back(at::zeros_like(flat(slot.parameter)));
    }
  }

  static void check_state(const std::string& name, const at::Tensor& state,
                          const at::Tensor& parameter) {
    if (state.dim() == 1 && state.is_contiguous() && state.numel() == parameter.numel() &&
        state.scalar_type() == parameter.scalar_type()) {
      return;
    }
    throw Error(fmt::format("state {} has {} elements of {}; the parameter has {} of {}", name,
                            state.numel(), c10::toString(state.scalar_type()), parameter.numel(),
                            c10::toString(parameter.scalar_type())));
  }

  std::vector<Options> options_;
  Slots<Slot> slots_;
};

}  // namespace zero::optim
