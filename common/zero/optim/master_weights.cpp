#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ne.h>
#include <ATen/ops/where.h>
#include <c10/core/GradMode.h>
#include <c10/util/ScopeExit.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include <zero/base/error.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/memory/storage.hpp>
#include <zero/optim/master_weights.hpp>
#include <zero/optim/optimizer_around.hpp>

namespace zero::optim {
namespace {

constexpr const char* kMaster = "master";

bool is_half(const at::Tensor& tensor) { return at::isReducedFloatingType(tensor.scalar_type()); }

struct MasterSlot {
  at::Tensor parameter;
  // If the parameter has 2 bytes, its master: float32, of its shape, without bytes before the first
  // update. Else the parameter itself.
  at::Tensor held;
  bool has_master = false;
  // The parameter's version counter when it was the rounded master; -1: unknown.
  std::int64_t version = -1;
};

MasterSlot master_slot(const at::Tensor& parameter) {
  if (!is_half(parameter)) return {.parameter = parameter, .held = parameter};
  at::Tensor master = memory::without_storage(parameter.sizes(), at::kFloat, parameter.device());
  return {.parameter = parameter, .held = master.requires_grad_(parameter.requires_grad())};
}

// Parameters that are widened, updated and rounded together.
using Batch = std::vector<MasterSlot*>;

// Each batch costs a few kernels, and the inner optimizer looks at all its slots: at most
// 2 * 16 + 1 times in a step, however many parameters there are.
constexpr std::int64_t kBatches = 16;

class MasterWeights final : public OptimizerAround<MasterSlot> {
 public:
  MasterWeights(const OptimizerFactory& make, const std::vector<at::Tensor>& parameters)
      : OptimizerAround(make, parameters, &master_slot),
        keeps_masters_(std::ranges::any_of(parameters, is_half)) {
    if (inner_->is_offloaded()) {
      throw Error("with_offload() goes around with_master_weights(), not into it");
    }
  }

  void step() override {
    const at::NoGradGuard no_grad;
    // The inner optimizer sees gradients of the other parameters when it has updated the masters.
    std::vector<at::Tensor> others, gradients;
    Batch halves;
    for (MasterSlot& slot : slots_) {
      if (!slot.parameter.grad().defined()) continue;
      if (is_half(slot.parameter)) {
        halves.push_back(&slot);
        continue;
      }
      others.push_back(slot.parameter);
      gradients.push_back(std::exchange(slot.parameter.mutable_grad(), at::Tensor()));
    }
    const auto give = [&others](const std::vector<at::Tensor>& gradients_of_others) {
      for (std::size_t i = 0; i < others.size(); ++i) {
        others[i].mutable_grad() = gradients_of_others[i];
      }
    };
    const auto end = c10::make_scope_exit([&] { give(gradients); });
    for (const Batch& batch : batches_of(halves, kBatches)) step(batch);
    give(divided_by_scale(gradients));
    inner_->step();
  }

  std::map<std::string, at::Tensor> state(const at::Tensor& parameter) const override {
    std::map<std::string, at::Tensor> states = OptimizerAround::state(parameter);
    const MasterSlot& slot = slots_.of(parameter);
    if (slot.has_master) states[kMaster] = memory::raw(slot.held).view({-1});
    return states;
  }

  std::map<std::string, at::ScalarType> state_types(const at::Tensor& parameter) const override {
    return Optimizer::state_types(parameter);  // with the master
  }

  std::int64_t state_bytes(const at::Tensor& parameter) const override {
    const at::Tensor master = is_half(parameter) ? held(parameter) : at::Tensor();
    const auto bytes = static_cast<std::int64_t>(master.defined() ? master.nbytes() : 0);
    return bytes + OptimizerAround::state_bytes(parameter);
  }

  void set_gradient_scale(double scale) override {
    if (!std::isfinite(scale) || scale <= 0) {
      throw Error(fmt::format("gradients cannot be {} times too large", scale));
    }
    scale_ = scale;
  }

  bool can_offload() const override { return inner_->can_offload(); }
  Settings settings() const override {
    Settings all = inner_->settings();
    if (keeps_masters_ && !all.kind.empty()) all.kind += " with master weights";
    return all;
  }

  void load_state(const at::Tensor& parameter, std::int64_t steps,
                  const std::map<std::string, at::Tensor>& states) override {
    MasterSlot* slot = slots_.find(parameter);
    if (slot == nullptr || !is_half(parameter)) {
      return OptimizerAround::load_state(parameter, steps, states);
    }
    std::map<std::string, at::Tensor> inner = states;
    // Not all optimizers count steps, but an updated parameter has a master.
    const bool updated = steps != 0 || !states.empty();
    if (updated) {
      memory::place(slot->held, take_master(inner, parameter), /*offset=*/0);
    } else {
      memory::separate_storage(slot->held);
    }
    slot->has_master = updated;
    slot->version = -1;
    inner_->load_state(slot->held, steps, inner);
  }

  void take_exact(const at::Tensor& parameter, const at::Tensor& values) override {
    MasterSlot* const slot = slots_.find(parameter);
    if (slot == nullptr || !is_half(parameter)) return;
    const memory::Charge charge(memory::Category::kOptimizer);
    if (!slot->has_master) memory::allocate_storage(slot->held);
    memory::raw(slot->held).view({-1}).copy_(values);
    slot->has_master = true;
    slot->version = -1;
  }
  bool keeps_exact() const override { return keeps_masters_; }

 private:
  // On a GPU a list of tensors takes hardly more kernels than one tensor, and the host does not
  // wait.
  void step(const Batch& batch) {
    make_masters(batch);
    std::vector<at::Tensor> parameters, gradients, masters, wide;
    for (const MasterSlot* slot : batch) {
      parameters.push_back(memory::raw(slot->parameter));
      gradients.push_back(memory::raw(slot->parameter.grad()));
      masters.push_back(memory::raw(slot->held));
      const memory::Charge charge(memory::Category::kOther);
      wide.push_back(at::empty(slot->held.sizes(), masters.back().options()));
      slot->held.mutable_grad() = wide.back();
    }
    at::_foreach_copy_(wide, gradients);
    if (scale_ != 1.0) at::_foreach_mul_(wide, 1.0 / scale_);
    inner_->step();
    at::_foreach_copy_(parameters, masters);
    for (MasterSlot* slot : batch) {
      slot->held.mutable_grad().reset();
      slot->version = slot->parameter._version();
    }
  }

  // Copies the parameters' current values, if this is their first update, and what was written into
  // them since the last one.
  static void make_masters(const Batch& batch) {
    std::vector<at::Tensor> parameters, masters;
    const memory::Charge charge(memory::Category::kOptimizer);
    for (MasterSlot* slot : batch) {
      if (slot->has_master) {
        if (slot->parameter._version() != slot->version) follow(*slot);
        continue;
      }
      memory::allocate_storage(slot->held);
      slot->has_master = true;
      parameters.push_back(memory::raw(slot->parameter));
      masters.push_back(memory::raw(slot->held));
    }
    if (!masters.empty()) at::_foreach_copy_(masters, parameters);
  }

  // The program may have written into the parameter: a value that is not the rounded master is new.
  static void follow(const MasterSlot& slot) {
    const memory::Charge charge(memory::Category::kOther);
    const at::Tensor parameter = memory::raw(slot.parameter), master = memory::raw(slot.held);
    const at::Tensor changed = master.to(parameter.scalar_type()).ne(parameter);
    if (!changed.any().item<bool>()) return;
    master.copy_(at::where(changed, parameter.to(at::kFloat), master));
  }

  // Copies, because others see the gradients too.
  std::vector<at::Tensor> divided_by_scale(const std::vector<at::Tensor>& gradients) const {
    if (scale_ == 1.0 || gradients.empty()) return gradients;
    const memory::Charge charge(memory::Category::kOther);
    return at::_foreach_mul(gradients, 1.0 / scale_);
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

  bool keeps_masters_;
  double scale_ = 1.0;
};

}  // namespace

OptimizerFactory with_master_weights(OptimizerFactory optimizer) {
  return [optimizer = std::move(optimizer)](const std::vector<at::Tensor>& parameters) {
    return std::make_unique<MasterWeights>(optimizer, parameters);
  };
}

}  // namespace zero::optim
