#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include <utility>

#include <zero/base/error.hpp>
#include <zero/memory/charge.hpp>
#include <zero/memory/storage.hpp>
#include <zero/optim/optimizer_around.hpp>
#include <zero/optim/weight_average.hpp>

namespace zero::optim {
namespace {

constexpr const char* kAverage = "average";
constexpr const char* kKind = " with average";

struct AverageSlot {
  at::Tensor parameter;
  at::Tensor held;          // the parameter itself
  at::Tensor average = {};  // flat; undefined before the first update
};

at::ScalarType type_of_average(const at::Tensor& parameter) {
  return at::isReducedFloatingType(parameter.scalar_type()) ? at::kFloat : parameter.scalar_type();
}

class WeightAverage final : public OptimizerAround<AverageSlot> {
 public:
  WeightAverage(const OptimizerFactory& make, const std::vector<at::Tensor>& parameters,
                double decay)
      : OptimizerAround(make, parameters,
                        [](const at::Tensor& p) {
                          return AverageSlot{p, p};
                        }),
        decay_(decay) {
    if (inner_->is_offloaded()) {
      throw Error("with_weight_average() needs optimizer states in memory: leave out the offload");
    }
  }

  void step() override {
    const at::NoGradGuard no_grad;
    for (AverageSlot& slot : slots_) {
      if (slot.average.defined() || !slot.parameter.grad().defined()) continue;
      const memory::Charge charge(memory::Category::kOptimizer);
      slot.average = value_of(slot.parameter).clone();
    }
    inner_->step();
    const memory::Charge charge(memory::Category::kOther);
    for (const AverageSlot& slot : slots_) {
      if (!slot.average.defined()) continue;
      // Each operation rounds once, so that vector and scalar code agree.
      slot.average.add_(value_of(slot.parameter).sub(slot.average).mul_(1 - decay_));
    }
  }

  std::map<std::string, at::Tensor> state(const at::Tensor& parameter) const override {
    std::map<std::string, at::Tensor> states = OptimizerAround::state(parameter);
    const at::Tensor& average = slots_.of(parameter).average;
    if (average.defined()) states[kAverage] = average;
    return states;
  }

  std::int64_t state_bytes(const at::Tensor& parameter) const override {
    const auto element = static_cast<std::int64_t>(c10::elementSize(type_of_average(parameter)));
    return OptimizerAround::state_bytes(parameter) + parameter.numel() * element;
  }

  Settings settings() const override {
    Settings all = inner_->settings();
    if (!all.kind.empty()) all.kind += kKind;
    for (auto& group : all.groups) group["average_decay"] = decay_;
    return all;
  }

  void load_state(const at::Tensor& parameter, std::int64_t steps,
                  const std::map<std::string, at::Tensor>& states) override {
    AverageSlot* slot = slots_.find(parameter);
    std::map<std::string, at::Tensor> inner = states;
    const auto found = inner.extract(kAverage);
    const at::Tensor average = found ? found.mapped() : at::Tensor();
    const bool fits =
        average.defined() ? average.numel() == parameter.numel() : states.empty() && steps == 0;
    if (slot == nullptr || !fits) {
      throw Error("these states hold no average of this parameter's size");
    }
    inner_->load_state(parameter, steps, inner);
    const memory::Charge charge(memory::Category::kOptimizer);
    // A checkpoint that is converted (LoadOptions::convert_dtype) may have it in the model's type.
    slot->average = average.defined() ? average.to(type_of_average(parameter)) : average;
  }

 private:
  // The master weight, or else the parameter; flat.
  at::Tensor value_of(const at::Tensor& parameter) const {
    const auto states = inner_->state(parameter);
    const auto master = states.find("master");
    const at::Tensor value = master == states.end() ? memory::raw(parameter) : master->second;
    return value.reshape({-1}).to(type_of_average(parameter));
  }

  double decay_;
};

}  // namespace

OptimizerFactory with_weight_average(OptimizerFactory optimizer, double decay) {
  if (!(decay >= 0 && decay < 1)) {
    throw Error(
        fmt::format("a weight average with the decay {}; it must be from 0 to below 1", decay));
  }
  return [optimizer = std::move(optimizer), decay](const std::vector<at::Tensor>& parameters) {
    return std::make_unique<WeightAverage>(optimizer, parameters, decay);
  };
}

bool has_weight_average(const Optimizer& optimizer) {
  return optimizer.settings().kind.ends_with(kKind);
}

at::Tensor weight_average(const Optimizer& optimizer, const at::Tensor& parameter) {
  if (!has_weight_average(optimizer)) {
    throw Error(
        "the optimizer keeps no average of the weights: make it with "
        "optim::with_weight_average()");
  }
  const auto states = optimizer.state(parameter);
  const auto found = states.find(kAverage);
  return found == states.end() ? at::Tensor() : found->second;
}

}  // namespace zero::optim
