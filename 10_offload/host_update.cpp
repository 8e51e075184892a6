#include "host_update.hpp"

#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/empty.h>
#include <c10/core/Event.h>
#include <c10/core/GradMode.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/ScopeExit.h>

#include <optional>
#include <utility>

#include <zero/base/error.hpp>
#include <zero/memory/charge.hpp>
#include <zero/memory/storage.hpp>
#include <zero/optim/optimizer_around.hpp>

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
  HostUpdate(const OptimizerFactory& make, const std::vector<at::Tensor>& parameters)
      : OptimizerAround(make, parameters, &host_slot), bus_(parameters.front().device()) {}

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
    if (is_partly_updated_) throw Error("an update on the host has failed: load a checkpoint");
    const at::NoGradGuard no_grad;
    is_partly_updated_ = true;
    const HostSlots due =
        slots_.that([](const HostSlot& slot) { return slot.parameter.grad().defined(); });
    follow_parameters(due);
    finish_taking();
    bus_.wait();
    bus_.begin();  // what goes back waits for those who read; the host does not
    const auto end = c10::make_scope_exit([this] { bus_.end(); });
    // Tiles of a disk make one step of all.
    for (const HostSlots& part : batches_of(due, inner_->is_offloaded() ? 1 : kParts)) update(part);
    is_partly_updated_ = false;
  }

  bool is_offloaded() const override { return true; }

  // Without a device twins and gradients are where the parameters are.
  std::int64_t resident_bytes(std::int64_t state_bytes) const override {
    return bus_.is_there() ? 0 : inner_->resident_bytes(state_bytes);
  }

  OffloadTraffic offload_traffic() const override {
    OffloadTraffic traffic = inner_->offload_traffic();
    traffic.to_host_bytes = to_host_bytes_;
    traffic.to_device_bytes = to_device_bytes_;
    return traffic;
  }

  void load_state(const at::Tensor& parameter, std::int64_t steps, const States& states) override {
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

  Bus bus_;
  std::int64_t to_host_bytes_ = 0;
  std::int64_t to_device_bytes_ = 0;
  bool is_partly_updated_ = false;  // in an update, and since one failed until states are loaded
  double gradient_scale_ = 1;
};

}  // namespace

std::unique_ptr<Optimizer> update_on_host(const OptimizerFactory& make,
                                          const std::vector<at::Tensor>& parameters) {
  return std::make_unique<HostUpdate>(make, parameters);
}

}  // namespace zero::optim
