#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/empty.h>
#include <c10/core/Event.h>
#include <c10/core/GradMode.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/ScopeExit.h>

#include <future>
#include <optional>
#include <utility>

#include <zero/base/error.hpp>
#include <zero/memory/charge.hpp>
#include <zero/memory/storage.hpp>
#include <zero/optim/offload/host_update.hpp>
#include <zero/optim/optimizer_around.hpp>
#include <zero/optim/weight_average.hpp>

namespace zero::optim {
namespace {

using States = std::map<std::string, at::Tensor>;
using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

// A part goes back while the next one is updated.
constexpr std::int64_t kParts = 16;

struct HostSlot {
  at::Tensor parameter;
  at::Tensor held;           // its twin on the host; without bytes before the first update
  at::Tensor gradient = {};  // on the host; undefined before the first one
  at::Tensor late = {};      // the same of the step before, if its update is late
  // The gradient that was copied, and its version counter then or after the last factor.
  std::optional<WeakTensor> taken = {};
  std::int64_t taken_version = 0;
  std::vector<double> factors = {};  // what it was multiplied by since
  // The parameter's version counter when the twin had its values.
  static constexpr std::int64_t kUnknown = -1;
  std::int64_t version = kUnknown;
};
using HostSlots = std::vector<HostSlot*>;

HostSlot host_slot(const at::Tensor& parameter) {
  const at::Tensor twin = memory::without_storage(parameter.sizes(), parameter.scalar_type());
  return {.parameter = parameter, .held = twin.requires_grad_(parameter.requires_grad())};
}

bool has_taken(const HostSlot& slot) {
  const at::Tensor& gradient = slot.parameter.grad();
  return slot.taken && gradient.defined() &&
         slot.taken->_unsafe_get_target() == gradient.unsafeGetTensorImpl() &&
         slot.taken_version == gradient._version();
}

// Of the shape of `tensor`, in page-locked memory if that is on a device.
at::Tensor room_on_host(const at::Tensor& tensor) {
  const memory::Charge charge(memory::Category::kOptimizer);
  return at::empty(tensor.sizes(),
                   tensor.options().device(at::kCPU).pinned_memory(!tensor.is_cpu()));
}

// A stream of copies between the host and a device; on the CPU there is none.
class Bus {
 public:
  explicit Bus(at::Device device) {
    if (!device.is_cpu()) {
      const c10::impl::VirtualGuardImpl guard(device.type());
      stream_ = guard.getStreamFromGlobalPool(device, /*isHighPriority=*/true);
    }
  }
  bool is_there() const { return stream_.has_value(); }
  // Copies that are made next run behind earlier work of the current stream.
  void begin() const {
    if (stream_) order(current(), *stream_);
  }
  // Later work of the current stream runs behind the copies.
  void end() const {
    if (stream_) order(*stream_, current());
  }
  // Blocks until the host has them.
  void wait() const {
    if (!stream_) return;
    c10::Event copied(stream_->device_type());
    copied.record(*stream_);
    if (!copied.query()) copied.synchronize();
  }
  // Starts a copy. Returns its bytes.
  std::int64_t copy(const at::Tensor& to, const at::Tensor& from) const {
    const c10::OptionalStreamGuard guard(stream_);
    to.copy_(from, /*non_blocking=*/true);
    return static_cast<std::int64_t>(from.nbytes());
  }

 private:
  c10::Stream current() const {
    return c10::impl::VirtualGuardImpl(stream_->device_type()).getStream(stream_->device());
  }
  static void order(const c10::Stream& earlier, const c10::Stream& later) {
    c10::Event event(earlier.device_type());
    event.record(earlier);
    event.block(later);
  }

  std::optional<c10::Stream> stream_;
};

class HostUpdate final : public OptimizerAround<HostSlot> {
 public:
  HostUpdate(const OptimizerFactory& make, const std::vector<at::Tensor>& parameters,
             std::int64_t delay_after)
      : OptimizerAround(make, parameters, &host_slot),
        bus_(parameters.front().device()),
        delay_after_(delay_after),
        averages_(has_weight_average(*inner_)) {
    if (averages_ && delay_after != kNoDelay) {
      throw Error("with_weight_average() goes with updates in time: leave out offload_delay_after");
    }
  }
  ~HostUpdate() override { wait_for_late(); }
  HostUpdate(const HostUpdate&) = delete;
  HostUpdate& operator=(const HostUpdate&) = delete;

  void take_gradients(const std::vector<at::Tensor>& parameters) override {
    HostSlots slots;
    for (const at::Tensor& p : parameters) {
      HostSlot* const slot = slots_.find(p);
      if (slot != nullptr && p.grad().defined()) slots.push_back(slot);
    }
    take(slots);
  }

  void finish_taking() override {
    take(slots_.that(
        [](const HostSlot& slot) { return slot.parameter.grad().defined() && !has_taken(slot); }));
    bus_.end();
  }

  void scale_gradients(const std::vector<at::Tensor>& gradients, double factor) override {
    const HostSlots scaled = slots_.that(has_taken);
    Optimizer::scale_gradients(gradients, factor);
    for (HostSlot* const slot : scaled) {
      slot->factors.push_back(factor);
      slot->taken_version = slot->parameter.grad()._version();
    }
  }

  void step() override {
    finish_update();
    const at::NoGradGuard no_grad;
    is_partly_updated_ = true;
    HostSlots due, late;
    for (HostSlot& slot : slots_) {
      if (!slot.parameter.grad().defined()) continue;
      const bool waits = may_be_late() && inner_->steps(slot.held) >= delay_after_;
      (waits ? late : due).push_back(&slot);
    }
    follow_parameters(due);
    follow_parameters(late);
    if (averages_) {  // of parameters without a gradient, too
      follow_parameters(slots_.that([this](const HostSlot& slot) {
        return !slot.parameter.grad().defined() && !inner_->state_types(slot.held).empty();
      }));
    }
    finish_taking();
    bus_.wait();
    bus_.begin();  // what goes back waits for those who read; the host does not
    const auto end = c10::make_scope_exit([this] { bus_.end(); });
    // The others make one step of all.
    const bool in_parts = !inner_->is_offloaded() && !averages_;
    for (const HostSlots& part : batches_of(due, in_parts ? kParts : 1)) update(part);
    if (!late.empty()) update_later(late);
    is_partly_updated_ = false;
  }

  bool may_be_late() const override { return delay_after_ != kNoDelay; }

  bool finish_update() override {
    if (is_partly_updated_) throw Error("an update on the host has failed: load a checkpoint");
    if (late_.empty()) return false;
    const at::NoGradGuard no_grad;
    is_partly_updated_ = true;
    const HostSlots late = std::exchange(late_, {});
    const auto hide = c10::make_scope_exit([&] { hide_gradients(late); });
    meanwhile_.get();
    for (const HostSlot* const slot : late) {
      if (slot->version == slot->parameter._version()) continue;
      throw Error(
          "a parameter was written while its update was late (offload_delay_after): write under "
          "UnshardedParameters, which waits for it");
    }
    bus_.begin();
    send_back(late);
    bus_.end();
    is_partly_updated_ = false;
    return true;
  }

  void replace(const std::function<at::Tensor(const at::Tensor&)>& with) override {
    forget_late();
    OptimizerAround::replace(with);
  }

  std::map<std::string, at::ScalarType> state_types(const at::Tensor& parameter) const override {
    return inner().state_types(held(parameter));
  }
  bool is_offloaded() const override { return true; }

  // Without a device twins and gradients are where the parameters are.
  std::int64_t resident_bytes(std::int64_t state_bytes) const override {
    if (bus_.is_there()) return 0;
    std::int64_t bytes = inner_->resident_bytes(state_bytes);
    for (const HostSlot& slot : slots_) {
      if (slot.late.defined()) bytes += 3 * static_cast<std::int64_t>(slot.late.nbytes());
    }
    return bytes;
  }

  OffloadTraffic offload_traffic() const override {
    OffloadTraffic traffic = inner().offload_traffic();
    traffic.to_host_bytes = to_host_bytes_;
    traffic.to_device_bytes = to_device_bytes_;
    return traffic;
  }
  void stream_offloaded() override { inner().stream_offloaded(); }

  void load_state(const at::Tensor& parameter, std::int64_t steps, const States& states) override {
    forget_late();
    States here;
    for (const auto& [name, state] : states) here[name] = state.cpu();
    OptimizerAround::load_state(parameter, steps, here);
    slots_.find(parameter)->version = HostSlot::kUnknown;
    is_partly_updated_ = false;
  }

  void set_gradient_scale(double scale) override {
    if (gradient_scale_ == scale) return;
    OptimizerAround::set_gradient_scale(scale);
    gradient_scale_ = scale;
  }

 protected:
  Optimizer& inner() const override {
    wait_for_late();
    return *inner_;
  }

 private:
  void take(const HostSlots& slots) {
    if (slots.empty()) return;
    const at::NoGradGuard no_grad;
    bus_.begin();
    for (HostSlot* const slot : slots) {
      const at::Tensor gradient = slot->parameter.grad();
      if (!slot->gradient.defined()) slot->gradient = room_on_host(slot->parameter);
      to_host_bytes_ += bus_.copy(slot->gradient, gradient);
      slot->taken.emplace(gradient.getIntrusivePtr());
      slot->taken_version = gradient._version();
      slot->factors.clear();
    }
  }

  // Makes a twin before its first update, and copies a parameter to its twin again if the program
  // has written into the parameter.
  void follow_parameters(const HostSlots& due) {
    for (HostSlot* const slot : due) {
      if (slot->version == slot->parameter._version()) continue;
      if (!memory::has_storage(slot->held)) {
        memory::place(slot->held, room_on_host(slot->parameter).view({-1}), /*offset=*/0);
      }
      bus_.begin();
      to_host_bytes_ += bus_.copy(slot->held, memory::raw(slot->parameter));
      slot->version = slot->parameter._version();
    }
  }

  static void show_gradients(const HostSlots& part) {
    for (HostSlot* const slot : part) {
      for (const double factor : std::exchange(slot->factors, {})) {
        at::_foreach_mul_({slot->gradient}, factor);
      }
      slot->taken.reset();
      slot->held.mutable_grad() = slot->gradient;
    }
  }
  static void hide_gradients(const HostSlots& part) {
    for (HostSlot* const slot : part) slot->held.mutable_grad().reset();
  }

  void update(const HostSlots& part) {
    const auto hide = c10::make_scope_exit([&] { hide_gradients(part); });
    show_gradients(part);
    inner_->step();
    send_back(part);
  }

  void send_back(const HostSlots& part) {
    for (HostSlot* const slot : part) {
      to_device_bytes_ += bus_.copy(memory::raw(slot->parameter), memory::raw(slot->held));
    }
  }

  void update_later(const HostSlots& late) {
    show_gradients(late);
    for (HostSlot* const slot : late) std::swap(slot->gradient, slot->late);
    late_ = late;
    // Without a launch policy: if the system has no thread left, the thread that waits updates.
    meanwhile_ = std::async([this] {
      const at::NoGradGuard no_grad;
      inner_->step();
    });
  }

  void wait_for_late() const {
    if (meanwhile_.valid()) meanwhile_.wait();
  }

  // When states are loaded, what is late is not wanted any more.
  void forget_late() {
    wait_for_late();
    hide_gradients(late_);
    for (HostSlot* const slot : std::exchange(late_, {})) slot->version = HostSlot::kUnknown;
    meanwhile_ = {};
  }

  Bus bus_;
  std::int64_t to_host_bytes_ = 0;
  std::int64_t to_device_bytes_ = 0;
  std::int64_t delay_after_;
  bool averages_;                   // whether the inner one averages weights
  bool is_partly_updated_ = false;  // in an update, and since one failed until states are loaded
  double gradient_scale_ = 1;
  HostSlots late_;               // what is updated meanwhile
  std::future<void> meanwhile_;  // that update
};

}  // namespace

std::unique_ptr<Optimizer> update_on_host(const OptimizerFactory& make,
                                          const std::vector<at::Tensor>& parameters,
                                          std::int64_t delay_after) {
  return std::make_unique<HostUpdate>(make, parameters, delay_after);
}

}  // namespace zero::optim
