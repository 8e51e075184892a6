#pragma once

// What optimizers have in common that are made around another.

#include <torch/types.h>

#include <memory>
#include <unordered_map>

#include <zero/optim/optimizer.hpp>
#include <zero/optim/slots.hpp>

namespace zero::optim {

/// An optimizer around an inner one, which updates. For each parameter `slot.parameter` the inner
/// one holds `slot.held`, the parameter itself or a tensor in its place. What is not overridden
/// here, such as what concerns gradients, is as in Optimizer.
template <typename Slot>
class OptimizerAround : public Optimizer {
 public:
  void replace(const std::function<at::Tensor(const at::Tensor&)>& with) override {
    Held next;
    slots_.replace(with, [&](Slot& slot, const at::Tensor& other) {
      at::Tensor& in_its_place = next[slot.held.unsafeGetTensorImpl()];
      slot = other.defined() ? slot_of_(other) : Slot{};
      in_its_place = slot.held;
    });
    hold(next);
  }

  std::map<std::string, at::Tensor> state(const at::Tensor& parameter) const override {
    return inner_->state(held(parameter));
  }
  std::map<std::string, at::ScalarType> state_types(const at::Tensor& parameter) const override {
    return inner_->state_types(held(parameter));
  }
  std::int64_t steps(const at::Tensor& parameter) const override {
    return inner_->steps(held(parameter));
  }
  std::int64_t state_bytes(const at::Tensor& parameter) const override {
    return inner_->state_bytes(held(parameter));
  }
  std::int64_t resident_bytes(std::int64_t state_bytes) const override {
    return inner_->resident_bytes(state_bytes);
  }
  bool needs_whole() const override { return inner_->needs_whole(); }
  OffloadTraffic offload_traffic() const override { return inner_->offload_traffic(); }
  void stream_offloaded() override { inner_->stream_offloaded(); }
  std::size_t group_of(const at::Tensor& parameter) const override {
    return inner_->group_of(held(parameter));
  }
  Settings settings() const override { return inner_->settings(); }
  void load_state(const at::Tensor& parameter, std::int64_t steps,
                  const std::map<std::string, at::Tensor>& states) override {
    inner_->load_state(held(parameter), steps, states);
  }
  void take_exact(const at::Tensor& parameter, const at::Tensor& values) override {
    inner_->take_exact(held(parameter), values);
  }
  bool keeps_exact() const override { return inner_->keeps_exact(); }
  void set_gradient_scale(double scale) override { inner_->set_gradient_scale(scale); }
  void set_learning_rate(double rate) override { inner_->set_learning_rate(rate); }
  void set_learning_rates(const std::vector<double>& rates) override {
    inner_->set_learning_rates(rates);
  }

 protected:
  /// `make` gets the parameters, because it may know them by their names; then the inner optimizer
  /// holds what `slot_of` says.
  OptimizerAround(const OptimizerFactory& make, const std::vector<at::Tensor>& parameters,
                  Slot (*slot_of)(const at::Tensor& parameter))
      : inner_(make(parameters)), slot_of_(slot_of) {
    for (const at::Tensor& p : parameters) slots_.add(slot_of(p));
    inner_->replace([this](const at::Tensor& p) { return held(p); });
  }

  /// What the inner one holds for a parameter; undefined if this one does not hold it.
  at::Tensor held(const at::Tensor& parameter) const { return slots_.of(parameter).held; }

  /// Lets the inner one hold other tensors, by slot.
  void hold(const std::vector<at::Tensor>& tensors) {
    Held next;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      next[slots_[i].held.unsafeGetTensorImpl()] = tensors[i];
      slots_[i].held = tensors[i];
    }
    hold(next);
  }

  Slots<Slot> slots_;
  std::unique_ptr<Optimizer> inner_;

 private:
  using Held = std::unordered_map<const at::TensorImpl*, at::Tensor>;

  // By what it holds now. Undefined: it forgets that.
  void hold(const Held& next) {
    inner_->replace([&](const at::Tensor& now) {
      const auto found = next.find(now.unsafeGetTensorImpl());
      return found == next.end() ? now : found->second;
    });
  }

  Slot (*slot_of_)(const at::Tensor& parameter);
};

}  // namespace zero::optim
