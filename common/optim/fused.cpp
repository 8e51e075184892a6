#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "zero/memory/accounting.hpp"
#include "zero/memory/storage.hpp"
#include "zero/optim/optimizer.hpp"
#include "zero/optim/padded_kernel.hpp"

namespace zero::optim {
namespace {

struct Slot {
  at::Tensor parameter;
  std::size_t group = 0;
  std::int64_t steps = 0;
  std::vector<at::Tensor> states;  // empty before the first step
};

// What the two optimizers share: slots, groups, lazily made states, and one kernel call for all
// parameters of a group that have had the same number of steps.
template <typename Options>
class FusedOptimizer : public Optimizer {
 public:
  FusedOptimizer(std::vector<Group<Options>> groups, std::vector<std::string> state_names)
      : state_names_(std::move(state_names)) {
    for (std::size_t g = 0; g < groups.size(); ++g) {
      options_.push_back(groups[g].options);
      for (const at::Tensor& parameter : groups[g].parameters)
        slots_.push_back({parameter, g, 0, {}});
    }
  }

  void step() override {
    const at::NoGradGuard no_grad;
    std::map<std::pair<std::size_t, std::int64_t>, std::vector<Operands>> alike;
    for (Slot& slot : slots_) {
      if (!slot.parameter.grad().defined()) continue;
      if (slot.states.empty()) make_states(slot);
      ++slot.steps;
      Operands operands{flat(slot.parameter), flat(slot.parameter.grad())};
      for (const at::Tensor& state : slot.states) operands.push_back(state);
      alike[{slot.group, slot.steps}].push_back(std::move(operands));
    }
    for (const auto& [key, parameters] : alike) {
      run_padded(parameters, [&, &k = key](const std::vector<std::vector<at::Tensor>>& lists) {
        update(lists, options_[k.first], k.second);
      });
    }
  }

  void replace(const std::function<at::Tensor(const at::Tensor&)>& with) override {
    for (Slot& slot : slots_) {
      const at::Tensor other = with(slot.parameter);
      if (!other.is_same(slot.parameter)) slot = {other, slot.group, 0, {}};
    }
    std::erase_if(slots_, [](const Slot& slot) { return !slot.parameter.defined(); });
  }

  std::map<std::string, at::Tensor> state(const at::Tensor& parameter) const override {
    std::map<std::string, at::Tensor> result;
    if (const Slot* slot = find(parameter)) {
      for (std::size_t i = 0; i < slot->states.size(); ++i)
        result[state_names_[i]] = slot->states[i];
    }
    return result;
  }

  std::int64_t steps(const at::Tensor& parameter) const override {
    const Slot* slot = find(parameter);
    return slot == nullptr ? 0 : slot->steps;
  }

  void set_learning_rate(double rate) override {
    for (Options& options : options_) options.learning_rate = rate;
  }

 protected:
  /// lists: parameters, gradients, then one list per state.
  virtual void update(const std::vector<std::vector<at::Tensor>>& lists, const Options& options,
                      std::int64_t step) = 0;

 private:
  static at::Tensor flat(const at::Tensor& tensor) { return memory::raw(tensor).view({-1}); }

  void make_states(Slot& slot) const {
    const memory::Charge charge(memory::Category::kOptimizer);
    for (std::size_t i = 0; i < state_names_.size(); ++i) {
      slot.states.push_back(at::zeros_like(flat(slot.parameter)));
    }
  }

  const Slot* find(const at::Tensor& parameter) const {
    const auto found = std::find_if(slots_.begin(), slots_.end(), [&](const Slot& slot) {
      return slot.parameter.is_same(parameter);
    });
    return found == slots_.end() ? nullptr : &*found;
  }

  std::vector<std::string> state_names_;
  std::vector<Options> options_;
  std::vector<Slot> slots_;
};

class AdamW final : public FusedOptimizer<AdamWOptions> {
 public:
  explicit AdamW(std::vector<Group<AdamWOptions>> groups)
      : FusedOptimizer(std::move(groups), {"exp_avg", "exp_avg_sq"}) {}

 private:
  void update(const std::vector<std::vector<at::Tensor>>& lists, const AdamWOptions& o,
              std::int64_t step) override {
    // The kernel wants the step count as a tensor per parameter; all can be the same one.
    const at::Tensor count = at::full({}, static_cast<double>(step), at::kFloat);
    const std::vector<at::Tensor> counts(lists[0].size(), count);
    at::_fused_adamw_(lists[0], lists[1], lists[2], lists[3], /*max_exp_avg_sqs=*/{}, counts,
                      o.learning_rate, o.beta1, o.beta2, o.weight_decay, o.epsilon,
                      /*amsgrad=*/false, /*maximize=*/false);
  }
};

class Sgd final : public FusedOptimizer<SgdOptions> {
 public:
  explicit Sgd(std::vector<Group<SgdOptions>> groups)
      : FusedOptimizer(std::move(groups), {"momentum_buffer"}) {}

 private:
  void update(const std::vector<std::vector<at::Tensor>>& lists, const SgdOptions& o,
              std::int64_t step) override {
    at::_fused_sgd_(lists[0], lists[1], lists[2], o.weight_decay, o.momentum, o.learning_rate,
                    /*dampening=*/0.0, /*nesterov=*/false, /*maximize=*/false,
                    /*is_first_step=*/step == 1);
  }
};

}  // namespace

at::Tensor Optimizer::step(const std::function<at::Tensor()>& closure) {
  at::Tensor loss = closure();
  step();
  return loss;
}

std::unique_ptr<Optimizer> make_adamw(std::vector<Group<AdamWOptions>> groups) {
  return std::make_unique<AdamW>(std::move(groups));
}

std::unique_ptr<Optimizer> make_sgd(std::vector<Group<SgdOptions>> groups) {
  return std::make_unique<Sgd>(std::move(groups));
}

OptimizerFactory adamw(AdamWOptions options) {
  return [options](const std::vector<at::Tensor>& parameters) {
    return make_adamw({{parameters, options}});
  };
}

OptimizerFactory sgd(SgdOptions options) {
  return [options](const std::vector<at::Tensor>& parameters) {
    return make_sgd({{parameters, options}});
  };
}

}  // namespace zero::optim
