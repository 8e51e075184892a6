#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ne.h>
#include <ATen/ops/where.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include <cmath>
#include <unordered_map>
#include <utility>

#include <zero/base/error.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/memory/storage.hpp>
#include <zero/optim/master_weights.hpp>
#include <zero/optim/slots.hpp>
#include <zero/optim/weight_average.hpp>

namespace zero::optim {
namespace {

constexpr const char* kMaster = "master";

bool is_half(const at::Tensor& tensor) { return at::isReducedFloatingType(tensor.scalar_type()); }

// A 2-byte parameter, and the float32 tensor that the inner optimizer updates in its place.
struct TwoByteSlot {
  at::Tensor parameter;
  at::Tensor master;  // of the parameter's shape; without bytes before the first update
  bool has_master = false;
  // The parameter's version counter when it was the rounded master.
  static constexpr std::int64_t kUnknown = -1;
  std::int64_t version = kUnknown;
};

// Parameters that are widened, updated and rounded together.
using Batch = std::vector<TwoByteSlot*>;

// A batch holds at most this fraction of all elements, or one larger parameter. Each batch costs a
// few kernels, and the inner optimizer looks at all its slots: at most 2 * 16 + 1 times in a step,
// however many parameters there are.
constexpr std::int64_t kBatchesOfAll = 16;

TwoByteSlot without_master(const at::Tensor& parameter) {
  at::Tensor master = memory::without_storage(parameter.sizes(), at::kFloat, parameter.device());
  return {.parameter = parameter, .master = master.requires_grad_(parameter.requires_grad())};
}

class MasterWeights final : public Optimizer {
 public:
  MasterWeights(const OptimizerFactory& make, const std::vector<at::Tensor>& parameters) {
    // Two optimizers of the same kind, both made over all parameters, so that their groups are the
    // same; then each forgets the other's parameters.
    for (const at::Tensor& p : parameters) {
      is_half(p) ? slots_.add(without_master(p)) : others_.push_back(p);
    }
    keeps_masters_ = !slots_.empty();
    of_masters_ = make(parameters);
    if (of_masters_->is_offloaded()) {
      throw Error("with_offload() goes around with_master_weights(), not into it");
    }
    of_masters_->replace([this](const at::Tensor& p) {
      const TwoByteSlot* const slot = slots_.find(p);
      return slot == nullptr ? at::Tensor() : slot->master;
    });
    of_others_ = make(parameters);
    // It would average in every batch, and not what the parameter is.
    if (keeps_masters_ && has_weight_average(*of_masters_)) {
      throw Error("with_weight_average() goes around with_master_weights(), not into it");
    }
    of_others_->narrow([](const at::Tensor& tensor) { return !is_half(tensor); });
  }

  void step() override {
    const at::NoGradGuard no_grad;
    for (const Batch& batch : batches()) step(batch);
    step_others();
  }

  void replace(const std::function<at::Tensor(const at::Tensor&)>& with) override {
    std::unordered_map<const at::TensorImpl*, at::Tensor> masters;  // from old to new
    slots_.replace(with, [&](TwoByteSlot& slot, const at::Tensor& other) {
      at::Tensor& master = masters[slot.master.unsafeGetTensorImpl()];
      slot = other.defined() ? without_master(other) : TwoByteSlot{};
      master = slot.master;
    });
    of_masters_->replace([&](const at::Tensor& held) {
      const auto found = masters.find(held.unsafeGetTensorImpl());
      return found == masters.end() ? held : found->second;
    });
    others_.clear();
    of_others_->replace([&](const at::Tensor& held) {
      const at::Tensor other = with(held);
      if (other.defined()) others_.push_back(other);
      return other;
    });
  }

  std::map<std::string, at::Tensor> state(const at::Tensor& parameter) const override {
    const TwoByteSlot* slot = slots_.find(parameter);
    if (slot == nullptr) return of_others_->state(parameter);
    if (!slot->has_master) return {};
    std::map<std::string, at::Tensor> states = of_masters_->state(slot->master);
    states[kMaster] = memory::raw(slot->master).view({-1});
    return states;
  }

  std::int64_t steps(const at::Tensor& parameter) const override {
    const TwoByteSlot* slot = slots_.find(parameter);
    return slot == nullptr ? of_others_->steps(parameter) : of_masters_->steps(slot->master);
  }

  std::int64_t state_bytes(const at::Tensor& parameter) const override {
    const TwoByteSlot* slot = slots_.find(parameter);
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
    TwoByteSlot* slot = slots_.find(parameter);
    if (slot == nullptr) return of_others_->load_state(parameter, steps, states);
    std::map<std::string, at::Tensor> inner = states;
    // Not all optimizers count steps, but an updated parameter has a master.
    const bool updated = steps != 0 || !states.empty();
    if (updated) {
      memory::place(slot->master, take_master(inner, parameter), /*offset=*/0);
    } else {
      memory::separate_storage(slot->master);
    }
    slot->has_master = updated;
    slot->version = TwoByteSlot::kUnknown;
    of_masters_->load_state(slot->master, steps, inner);
  }

  void set_learning_rate(double rate) override {
    of_masters_->set_learning_rate(rate);
    of_others_->set_learning_rate(rate);
  }

  void set_learning_rates(const std::vector<double>& rates) override {
    of_masters_->set_learning_rates(rates);
    of_others_->set_learning_rates(rates);
  }

  std::size_t group_of(const at::Tensor& parameter) const override {
    const TwoByteSlot* slot = slots_.find(parameter);
    return slot == nullptr ? of_others_->group_of(parameter) : of_masters_->group_of(slot->master);
  }

 private:
  // All slots whose parameter has a gradient, in batches.
  std::vector<Batch> batches() {
    Batch due;
    std::int64_t all = 0;
    for (TwoByteSlot& slot : slots_) {
      if (!slot.parameter.grad().defined()) continue;
      due.push_back(&slot);
      all += slot.parameter.numel();
    }
    std::vector<Batch> result;
    std::int64_t elements = 0;  // of the last batch
    for (TwoByteSlot* slot : due) {
      elements += slot->parameter.numel();
      if (result.empty() || elements > all / kBatchesOfAll) {
        result.emplace_back();
        elements = slot->parameter.numel();
      }
      result.back().push_back(slot);
    }
    return result;
  }

  // On a GPU a list of tensors takes hardly more kernels than one tensor, and the host does not
  // wait.
  void step(const Batch& batch) {
    make_masters(batch);
    std::vector<at::Tensor> parameters, gradients, masters, wide;
    for (const TwoByteSlot* slot : batch) {
      parameters.push_back(memory::raw(slot->parameter));
      gradients.push_back(memory::raw(slot->parameter.grad()));
      masters.push_back(memory::raw(slot->master));
      const memory::Charge charge(memory::Category::kOther);
      wide.push_back(at::empty(slot->master.sizes(), masters.back().options()));
      slot->master.mutable_grad() = wide.back();
    }
    at::_foreach_copy_(wide, gradients);
    if (scale_ != 1.0) at::_foreach_mul_(wide, 1.0 / scale_);
    of_masters_->step();
    at::_foreach_copy_(parameters, masters);
    for (TwoByteSlot* slot : batch) {
      slot->master.mutable_grad().reset();
      slot->version = slot->parameter._version();
    }
  }

  // Copies the parameters' current values, if this is their first update, and what was written into
  // them since the last one.
  static void make_masters(const Batch& batch) {
    std::vector<at::Tensor> parameters, masters;
    const memory::Charge charge(memory::Category::kOptimizer);
    for (TwoByteSlot* slot : batch) {
      if (slot->has_master) {
        if (slot->parameter._version() != slot->version) follow(*slot);
        continue;
      }
      memory::allocate_storage(slot->master);
      slot->has_master = true;
      parameters.push_back(memory::raw(slot->parameter));
      masters.push_back(memory::raw(slot->master));
    }
    if (!masters.empty()) at::_foreach_copy_(masters, parameters);
  }

  // The program may have written into the parameter: a value that is not the rounded master is new.
  static void follow(const TwoByteSlot& slot) {
    const memory::Charge charge(memory::Category::kOther);
    const at::Tensor parameter = memory::raw(slot.parameter), master = memory::raw(slot.master);
    const at::Tensor changed = master.to(parameter.scalar_type()).ne(parameter);
    if (!changed.any().item<bool>()) return;
    master.copy_(at::where(changed, parameter.to(at::kFloat), master));
  }

  void step_others() {
    if (scale_ == 1.0) return of_others_->step();
    // Keep the gradients that others see unchanged.
    std::vector<at::Tensor> parameters, seen;
    for (const at::Tensor& p : others_) {
      if (!p.grad().defined()) continue;
      parameters.push_back(p);
      seen.push_back(p.grad());
    }
    if (parameters.empty()) return;
    const memory::Charge charge(memory::Category::kOther);
    const std::vector<at::Tensor> scaled = at::_foreach_mul(seen, 1.0 / scale_);
    for (std::size_t i = 0; i < seen.size(); ++i) parameters[i].mutable_grad() = scaled[i];
    of_others_->step();
    for (std::size_t i = 0; i < seen.size(); ++i) parameters[i].mutable_grad() = seen[i];
  }

  // Takes the master weight out of `states` and checks it.
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
    return master.view({-1});
  }

  Slots<TwoByteSlot> slots_;
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
