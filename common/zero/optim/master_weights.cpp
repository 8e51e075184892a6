#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include <zero/base/error.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/memory/storage.hpp>
#include <zero/optim/master_weights.hpp>

namespace zero::optim {
namespace {

constexpr const char* kMaster = "master";

bool is_half(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kBFloat16 || tensor.scalar_type() == at::kHalf;
}

// A parameter of 2 bytes and who stands for it in the optimizer that knows float32 only.
struct TwoByteSlot {
  at::Tensor parameter;
  at::Tensor master;  // of the parameter's shape; without bytes (meta) before the first update

  bool has_master() const { return !master.is_meta(); }
};

at::Tensor without_bytes(const at::Tensor& parameter) {
  return at::empty(parameter.sizes(), at::TensorOptions(at::kFloat).device(at::kMeta))
      .requires_grad_(parameter.requires_grad());
}

class MasterWeights final : public Optimizer {
 public:
  MasterWeights(const OptimizerFactory& make, const std::vector<at::Tensor>& parameters) {
    // Two of the same kind, both over all parameters, so that groups are made alike; then each
    // forgets what is the other's.
    std::vector<at::Tensor> masters;
    for (const at::Tensor& p : parameters) {
      if (!is_half(p)) {
        masters.push_back(p);
        continue;
      }
      slots_.push_back({p, without_bytes(p)});
      masters.push_back(slots_.back().master);
    }
    keeps_masters_ = !slots_.empty();
    of_masters_ = make(masters);
    of_masters_->narrow([](const at::Tensor& tensor) { return tensor.is_meta(); });
    of_others_ = make(parameters);
    of_others_->narrow([](const at::Tensor& tensor) { return !is_half(tensor); });
    for (const at::Tensor& p : parameters) {
      if (!is_half(p)) others_.push_back(p);
    }
  }

  void step() override {
    const at::NoGradGuard no_grad;
    for (TwoByteSlot& slot : slots_) {
      if (slot.parameter.grad().defined()) step(slot);
    }
    step_others();
  }

  void replace(const std::function<at::Tensor(const at::Tensor&)>& with) override {
    for (TwoByteSlot& slot : slots_) {
      const at::Tensor other = with(slot.parameter);
      if (other.is_same(slot.parameter)) continue;
      put_master(slot, other.defined() ? without_bytes(other) : at::Tensor());
      slot.parameter = other;
    }
    std::erase_if(slots_, [](const TwoByteSlot& slot) { return !slot.parameter.defined(); });
    for (at::Tensor& p : others_) {
      const at::Tensor other = with(p);
      if (other.is_same(p)) continue;
      of_others_->replace([&](const at::Tensor& held) { return held.is_same(p) ? other : held; });
      p = other;
    }
    std::erase_if(others_, [](const at::Tensor& p) { return !p.defined(); });
  }

  std::map<std::string, at::Tensor> state(const at::Tensor& parameter) const override {
    const TwoByteSlot* slot = find(parameter);
    if (slot == nullptr) return of_others_->state(parameter);
    if (!slot->has_master()) return {};
    std::map<std::string, at::Tensor> states = of_masters_->state(slot->master);
    states[kMaster] = slot->master.view({-1});
    return states;
  }

  std::int64_t steps(const at::Tensor& parameter) const override {
    const TwoByteSlot* slot = find(parameter);
    return slot == nullptr ? of_others_->steps(parameter) : of_masters_->steps(slot->master);
  }

  std::int64_t state_bytes(const at::Tensor& parameter) const override {
    const TwoByteSlot* slot = find(parameter);
    if (slot == nullptr) return of_others_->state_bytes(parameter);
    return static_cast<std::int64_t>(slot->master.nbytes()) +
           of_masters_->state_bytes(slot->master);
  }

  void set_gradient_scale(double scale) override {
    if (!std::isfinite(scale) || scale <= 0) {
      throw Error(fmt::format("gradients cannot be {} times too large", scale));
    }
    scale_ = scale;
  }

  Settings settings() const override {
    Settings all = of_masters_->settings();
    if (keeps_masters_ && !all.kind.empty()) all.kind += " with master weights";
    return all;
  }

  void load_state(const at::Tensor& parameter, std::int64_t steps,
                  const std::map<std::string, at::Tensor>& states) override {
    const auto slot = std::find_if(slots_.begin(), slots_.end(), [&](const TwoByteSlot& s) {
      return s.parameter.is_same(parameter);
    });
    if (slot == slots_.end()) return of_others_->load_state(parameter, steps, states);
    std::map<std::string, at::Tensor> inner = states;
    // Not all optimizers count steps; what has been updated has a master.
    const bool updated = steps != 0 || !states.empty();
    const at::Tensor master = updated ? take_master(inner, parameter) : without_bytes(parameter);
    put_master(*slot, master);
    of_masters_->load_state(master, steps, inner);
  }

  void set_learning_rate(double rate) override {
    of_masters_->set_learning_rate(rate);
    of_others_->set_learning_rate(rate);
  }

 private:
  void step(TwoByteSlot& slot) {
    if (!slot.has_master()) {
      const memory::Charge charge(memory::Category::kOptimizer);
      put_master(slot, memory::raw(slot.parameter).to(at::kFloat));
    }
    {
      const memory::Charge charge(memory::Category::kOther);
      slot.master.mutable_grad() = memory::raw(slot.parameter.grad()).to(at::kFloat);
    }
    if (scale_ != 1.0) slot.master.mutable_grad().mul_(1.0 / scale_);
    of_masters_->step();
    slot.master.mutable_grad().reset();
    memory::raw(slot.parameter).copy_(slot.master);
  }

  void step_others() {
    if (scale_ == 1.0) return of_others_->step();
    // The gradients that others see stay as they are.
    std::vector<at::Tensor> scaled;
    const memory::Charge charge(memory::Category::kOther);
    for (const at::Tensor& p : others_) {
      scaled.push_back(p.grad());
      if (p.grad().defined()) p.mutable_grad() = p.grad().mul(1.0 / scale_);
    }
    of_others_->step();
    for (std::size_t i = 0; i < others_.size(); ++i) others_[i].mutable_grad() = scaled[i];
  }

  // `master` takes the place of the slot's, in its group and without state.
  void put_master(TwoByteSlot& slot, const at::Tensor& master) {
    of_masters_->replace(
        [&](const at::Tensor& held) { return held.is_same(slot.master) ? master : held; });
    slot.master = master;
  }

  // Out of `states`, checked.
  static at::Tensor take_master(std::map<std::string, at::Tensor>& states,
                                const at::Tensor& parameter) {
    const auto found = states.find(kMaster);
    if (found == states.end()) {
      throw Error("these states hold no master weight: they are of an optimizer without them");
    }
    const at::Tensor master = found->second;
    if (master.scalar_type() != at::kFloat || master.numel() != parameter.numel() ||
        !master.is_contiguous()) {
      throw Error(fmt::format("a master weight of {} elements of {}; it must have {} of float32",
                              master.numel(), c10::toString(master.scalar_type()),
                              parameter.numel()));
    }
    states.erase(found);
    return master.view(parameter.sizes());
  }

  const TwoByteSlot* find(const at::Tensor& parameter) const {
    const auto found = std::find_if(slots_.begin(), slots_.end(), [&](const TwoByteSlot& slot) {
      return slot.parameter.is_same(parameter);
    });
    return found == slots_.end() ? nullptr : &*found;
  }

  std::vector<TwoByteSlot> slots_;
  std::vector<at::Tensor> others_;
  bool keeps_masters_ = false;
  std::unique_ptr<Optimizer> of_masters_;
  std::unique_ptr<Optimizer> of_others_;
  double scale_ = 1.0;
};

}  // namespace

OptimizerFactory with_master_weights(OptimizerFactory optimizer) {
  return [optimizer = std::move(optimizer)](const std::vector<at::Tensor>& parameters) {
    return std::make_unique<MasterWeights>(optimizer, parameters);
  };
}

}  // namespace zero::optim
