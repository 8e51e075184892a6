#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <tuple>
#include <utility>

#include <zero/base/error.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/memory/storage.hpp>
#include <zero/optim/adamw.hpp>
#include <zero/optim/slots.hpp>

namespace zero::optim {
namespace {

// The flat tensors of a parameter in one update: itself, its gradient, its two moments.
using Operands = std::array<at::Tensor, 4>;
constexpr std::size_t kGradient = 1;
// The same of many parameters.
using Lists = std::array<std::vector<at::Tensor>, 4>;

constexpr std::int64_t kVector = 16;

// A device computes all elements of a tensor alike.
std::int64_t tail_of(const Operands& operands) {
  return operands.front().is_cpu() ? operands.front().numel() % kVector : 0;
}

// Copies between the tails of all parameters and their places in the scratch.
void copy_tails(const std::vector<Operands>& parameters, std::size_t operand,
                const at::Tensor& scratch, bool into_scratch) {
  std::vector<at::Tensor> theirs, ours;
  for (const Operands& operands : parameters) {
    const std::int64_t tail = tail_of(operands);
    if (tail == 0) continue;
    const at::Tensor& whole = operands[operand];
    ours.push_back(scratch.narrow(0, static_cast<std::int64_t>(ours.size()) * kVector, tail));
    theirs.push_back(whole.narrow(0, whole.numel() - tail, tail));
  }
  into_scratch ? at::_foreach_copy_(ours, theirs) : at::_foreach_copy_(theirs, ours);
}

// Runs a fused kernel over many parameters so that no element is in a tensor's scalar tail.
//
// The kernel handles 16 float32 elements at a time and the remainder one by one, and the two paths
// sometimes round differently. An element in the tail of a whole tensor but in the body of a shard
// would then differ between chapters. So the last (elements mod 16) of each parameter are copied
// to a scratch padded to 16, updated there, and copied back, but for the gradient.
template <typename Kernel>
void run_padded(const std::vector<Operands>& parameters, const Kernel& kernel) {
  Lists lists;
  std::int64_t scratch_elements = 0;
  for (const Operands& p : parameters) {
    const std::int64_t tail = tail_of(p), body = p.front().numel() - tail;
    if (tail != 0) scratch_elements += kVector;
    if (body == 0) continue;
    for (std::size_t i = 0; i < p.size(); ++i) {
      lists[i].push_back(tail == 0 ? p[i] : p[i].narrow(0, 0, body));
    }
  }
  std::vector<at::Tensor> scratch;
  for (std::size_t i = 0; scratch_elements > 0 && i < lists.size(); ++i) {
    const memory::Charge charge(memory::Category::kOther);
    scratch.push_back(at::zeros({scratch_elements}, parameters.front()[i].options()));
    copy_tails(parameters, i, scratch[i], /*into_scratch=*/true);
    lists[i].push_back(scratch[i]);
  }
  if (!lists.front().empty()) kernel(lists);
  for (std::size_t i = 0; i < scratch.size(); ++i) {
    if (i != kGradient) copy_tails(parameters, i, scratch[i], /*into_scratch=*/false);
  }
}

at::Tensor flat(const at::Tensor& tensor) { return memory::raw(tensor).view({-1}); }

// A parameter and its moments, which are made in its first update.
struct Slot {
  at::Tensor parameter;
  std::size_t group = 0;
  std::int64_t steps = 0;
  at::Tensor average = {}, average_of_squares = {};
};

constexpr const char *kAverage = "exp_avg", *kAverageOfSquares = "exp_avg_sq";

class AdamW final : public Optimizer {
 public:
  explicit AdamW(const std::vector<Group<AdamWOptions>>& groups) {
    for (const Group<AdamWOptions>& group : groups) {
      for (const at::Tensor& parameter : group.parameters) slots_.add({parameter, options_.size()});
      options_.push_back(group.options);
    }
  }

  // One kernel for all parameters of a group that have had the same number of steps.
  void step() override {
    const at::NoGradGuard no_grad;
    // A kernel takes one dtype at a time.
    std::map<std::tuple<std::size_t, std::int64_t, at::ScalarType>, std::vector<Operands>> alike;
    for (Slot& slot : slots_) {
      if (!slot.parameter.grad().defined()) continue;
      if (!slot.average.defined()) {
        const memory::Charge charge(memory::Category::kOptimizer);
        slot.average = at::zeros_like(flat(slot.parameter));
        slot.average_of_squares = at::zeros_like(slot.average);
      }
      ++slot.steps;
      alike[{slot.group, slot.steps, slot.parameter.scalar_type()}].push_back(
          {flat(slot.parameter), flat(slot.parameter.grad()), slot.average,
           slot.average_of_squares});
    }
    for (const auto& [key, parameters] : alike) {
      const auto& [group, step, dtype] = key;
      run_padded(parameters, [&o = options_[group], count = step](const Lists& lists) {
        // The kernel wants the step count as a tensor per parameter; all can be the same one.
        const std::vector<at::Tensor> counts(
            lists[0].size(),
            at::full({}, static_cast<double>(count), lists[0].front().options().dtype(at::kFloat)));
        at::_fused_adamw_(lists[0], lists[1], lists[2], lists[3], /*max_exp_avg_sqs=*/{}, counts,
                          o.learning_rate, o.beta1, o.beta2, o.weight_decay, o.epsilon,
                          /*amsgrad=*/false, /*maximize=*/false);
      });
    }
  }

  void replace(const std::function<at::Tensor(const at::Tensor&)>& with) override {
    slots_.replace(with, [](Slot& slot, const at::Tensor& other) { slot = {other, slot.group}; });
  }

  std::map<std::string, at::Tensor> state(const at::Tensor& parameter) const override {
    const Slot& slot = slots_.of(parameter);
    if (!slot.average.defined()) return {};
    return {{kAverage, slot.average}, {kAverageOfSquares, slot.average_of_squares}};
  }

  std::int64_t steps(const at::Tensor& parameter) const override {
    return slots_.of(parameter).steps;
  }

  std::int64_t state_bytes(const at::Tensor& parameter) const override {
    return slots_.find(parameter) == nullptr ? 0 : Optimizer::state_bytes(parameter);
  }

  Settings settings() const override {
    Settings all{"AdamW", {}};
    for (const AdamWOptions& o : options_) {
      all.groups.push_back({{"learning_rate", o.learning_rate},
                            {"beta1", o.beta1},
                            {"beta2", o.beta2},
                            {"epsilon", o.epsilon},
                            {"weight_decay", o.weight_decay}});
    }
    return all;
  }

  bool can_offload() const override { return true; }

  void load_state(const at::Tensor& parameter, std::int64_t steps,
                  const std::map<std::string, at::Tensor>& states) override {
    Slot* const slot = slots_.find(parameter);
    if (slot == nullptr) throw Error("state for a parameter that this optimizer does not hold");
    const bool complete = steps > 0 && states.size() == 2 && states.contains(kAverage) &&
                          states.contains(kAverageOfSquares);
    if (!complete && (steps != 0 || !states.empty())) {
      throw Error(
          fmt::format("a parameter after {} updates needs these states: {}, {}; {} were given",
                      steps, kAverage, kAverageOfSquares, states.size()));
    }
    for (const auto& [name, state] : states) check_state(name, state, parameter);
    *slot = {parameter, slot->group, steps};
    if (!complete) return;
    slot->average = states.at(kAverage);
    slot->average_of_squares = states.at(kAverageOfSquares);
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

 private:
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

  std::vector<AdamWOptions> options_;
  Slots<Slot> slots_;
};

// The groups with their members among `parameters`, which are some of the module's.
std::vector<Group<AdamWOptions>> split_by_name(
    const torch::OrderedDict<std::string, at::Tensor>& named,
    const std::vector<at::Tensor>& parameters, const std::vector<AdamWOptions>& options,
    const GroupRule& rule) {
  std::vector<Group<AdamWOptions>> groups;
  for (const AdamWOptions& o : options) groups.push_back({{}, o});
  for (const at::Tensor& parameter : parameters) {
    const auto found = std::ranges::find_if(  // a tied parameter has its first name
        named, [&](const auto& item) { return item.value().is_same(parameter); });
    if (found == named.end()) {
      throw Error("groups by name: a parameter of the model is not one of the module's");
    }
    const std::size_t group = rule(found->key(), parameter);
    if (group >= groups.size()) {
      throw Error(fmt::format("parameter '{}' in group {}, and there are {}, from 0", found->key(),
                              group, groups.size()));
    }
    groups[group].parameters.push_back(parameter);
  }
  return groups;
}

}  // namespace

std::unique_ptr<Optimizer> make_adamw(const std::vector<Group<AdamWOptions>>& groups) {
  return std::make_unique<AdamW>(groups);
}

OptimizerFactory adamw(AdamWOptions options) {
  return [options](const std::vector<at::Tensor>& parameters) {
    return make_adamw({{parameters, options}});
  };
}

OptimizerFactory adamw(const torch::nn::Module& module, std::vector<AdamWOptions> groups,
                       const GroupRule& rule) {
  return [named = module.named_parameters(), groups = std::move(groups),
          rule](const std::vector<at::Tensor>& parameters) {
    return make_adamw(split_by_name(named, parameters, groups, rule));
  };
}

}  // namespace zero::optim
