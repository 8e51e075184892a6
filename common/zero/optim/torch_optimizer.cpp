#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <utility>

#include <zero/base/error.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/optim/adamw.hpp>
#include <zero/optim/torch_optimizer.hpp>

namespace zero::optim {
namespace {

template <typename State>
bool adam_state(const torch::optim::OptimizerParamState& state, std::int64_t& steps,
                std::map<std::string, at::Tensor>& tensors) {
  const auto* adam = dynamic_cast<const State*>(&state);
  if (adam == nullptr) return false;
  steps = adam->step();
  tensors = {{"exp_avg", adam->exp_avg().flatten()}, {"exp_avg_sq", adam->exp_avg_sq().flatten()}};
  return true;
}

// The states of one of LibTorch's optimizers, in the parameter's shape.
template <typename State>
std::unique_ptr<torch::optim::OptimizerParamState> new_adam_state(
    const at::Tensor& parameter, std::int64_t steps,
    const std::map<std::string, at::Tensor>& states) {
  auto state = std::make_unique<State>();
  state->step(steps);
  state->exp_avg(states.at("exp_avg").view(parameter.sizes()));
  state->exp_avg_sq(states.at("exp_avg_sq").view(parameter.sizes()));
  return state;
}

template <typename Options>
bool keeps_a_maximum(torch::optim::Optimizer& optimizer) {
  for (auto& group : optimizer.param_groups()) {
    if (static_cast<Options&>(group.options()).amsgrad()) return true;
  }
  return false;
}

class TorchOptimizer final : public Optimizer {
 public:
  explicit TorchOptimizer(std::unique_ptr<torch::optim::Optimizer> optimizer)
      : optimizer_(std::move(optimizer)) {}

  void step() override {
    const memory::Charge charge(memory::Category::kOptimizer);
    optimizer_->step();
  }

  void replace(const std::function<at::Tensor(const at::Tensor&)>& with) override {
    for (torch::optim::OptimizerParamGroup& group : optimizer_->param_groups()) {
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
    return look_up(parameter).second;
  }

  std::int64_t steps(const at::Tensor& parameter) const override {
    return look_up(parameter).first;
  }

  std::int64_t state_bytes(const at::Tensor& parameter) const override {
    if (kind() != "torch SGD") return Optimizer::state_bytes(parameter);
    for (auto& group : optimizer_->param_groups()) {
      const bool keeps = static_cast<torch::optim::SGDOptions&>(group.options()).momentum() != 0;
      for (const at::Tensor& p : group.params()) {
        if (p.is_same(parameter) && keeps) return static_cast<std::int64_t>(p.nbytes());
      }
    }
    return 0;
  }

  Settings settings() const override {
    Settings all{kind(), {}};
    for (auto& group : optimizer_->param_groups()) {
      all.groups.push_back(numbers_of(group.options(), all.kind));
    }
    return all;
  }

  void load_state(const at::Tensor& parameter, std::int64_t steps,
                  const std::map<std::string, at::Tensor>& states) override {
    const std::string known = kind();
    if (known.empty()) return Optimizer::load_state(parameter, steps, states);
    check_states(parameter, states, known == "torch SGD");
    optimizer_->state().erase(parameter.unsafeGetTensorImpl());
    if (states.empty()) return;
    std::unique_ptr<torch::optim::OptimizerParamState> state;
    if (known == "torch SGD") {
      auto sgd = std::make_unique<torch::optim::SGDParamState>();
      sgd->momentum_buffer(states.at("momentum_buffer").view(parameter.sizes()));
      state = std::move(sgd);
    } else if (known == "torch Adam") {
      state = new_adam_state<torch::optim::AdamParamState>(parameter, steps, states);
    } else {
      state = new_adam_state<torch::optim::AdamWParamState>(parameter, steps, states);
    }
    optimizer_->state()[parameter.unsafeGetTensorImpl()] = std::move(state);
  }

  void set_learning_rate(double rate) override {
    for (auto& group : optimizer_->param_groups()) group.options().set_lr(rate);
  }

 private:
  template <typename Options>
  static void add_adam_numbers(torch::optim::OptimizerOptions& options,
                               std::map<std::string, double>& numbers) {
    auto& adam = static_cast<Options&>(options);
    numbers["beta1"] = std::get<0>(adam.betas());
    numbers["beta2"] = std::get<1>(adam.betas());
    numbers["epsilon"] = adam.eps();
    numbers["weight_decay"] = adam.weight_decay();
  }

  static std::map<std::string, double> numbers_of(torch::optim::OptimizerOptions& options,
                                                  const std::string& kind) {
    std::map<std::string, double> numbers = {{"learning_rate", options.get_lr()}};
    if (kind == "torch Adam") add_adam_numbers<torch::optim::AdamOptions>(options, numbers);
    if (kind == "torch AdamW") add_adam_numbers<torch::optim::AdamWOptions>(options, numbers);
    if (kind == "torch SGD") {
      auto& sgd = static_cast<torch::optim::SGDOptions&>(options);
      numbers["momentum"] = sgd.momentum();
      numbers["dampening"] = sgd.dampening();
      numbers["weight_decay"] = sgd.weight_decay();
      numbers["nesterov"] = sgd.nesterov() ? 1 : 0;
    }
    return numbers;
  }

  // Empty if there is more state than state() shows.
  std::string kind() const {
    torch::optim::Optimizer& o = *optimizer_;
    if (dynamic_cast<const torch::optim::SGD*>(&o) != nullptr) return "torch SGD";
    if (dynamic_cast<const torch::optim::Adam*>(&o) != nullptr) {
      return keeps_a_maximum<torch::optim::AdamOptions>(o) ? "" : "torch Adam";
    }
    if (dynamic_cast<const torch::optim::AdamW*>(&o) != nullptr) {
      return keeps_a_maximum<torch::optim::AdamWOptions>(o) ? "" : "torch AdamW";
    }
    return "";
  }

  void check_states(const at::Tensor& parameter, const std::map<std::string, at::Tensor>& states,
                    bool sgd) const {
    const std::vector<std::string> names = sgd ? std::vector<std::string>{"momentum_buffer"}
                                               : std::vector<std::string>{"exp_avg", "exp_avg_sq"};
    bool fits = states.empty() || states.size() == names.size();
    for (const auto& [name, state] : states) {
      fits = fits && std::find(names.begin(), names.end(), name) != names.end() &&
             state.numel() == parameter.numel() && state.scalar_type() == parameter.scalar_type();
    }
    if (!fits) throw Error("these states are not of this optimizer and this parameter");
  }

  std::pair<std::int64_t, std::map<std::string, at::Tensor>> look_up(
      const at::Tensor& parameter) const {
    std::pair<std::int64_t, std::map<std::string, at::Tensor>> result{0, {}};
    const auto found = optimizer_->state().find(parameter.unsafeGetTensorImpl());
    if (found == optimizer_->state().end()) return result;
    const torch::optim::OptimizerParamState& state = *found->second;
    if (adam_state<torch::optim::AdamParamState>(state, result.first, result.second)) return result;
    if (adam_state<torch::optim::AdamWParamState>(state, result.first, result.second))
      return result;
    if (const auto* sgd = dynamic_cast<const torch::optim::SGDParamState*>(&state)) {
      result.second = {{"momentum_buffer", sgd->momentum_buffer().flatten()}};
    }
    return result;
  }

  std::unique_ptr<torch::optim::Optimizer> optimizer_;
};

}  // namespace

std::unique_ptr<Optimizer> wrap(std::unique_ptr<torch::optim::Optimizer> optimizer) {
  return std::make_unique<TorchOptimizer>(std::move(optimizer));
}

}  // namespace zero::optim
