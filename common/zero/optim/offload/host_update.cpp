#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/empty.h>
#include <c10/core/Event.h>
#include <c10/core/GradMode.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/ScopeExit.h>

#include <future>
#include <optional>
#include <unordered_map>
#include <utility>

#include <zero/base/error.hpp>
#include <zero/memory/charge.hpp>
#include <zero/memory/storage.hpp>
#include <zero/optim/offload/host_update.hpp>
#include <zero/optim/slots.hpp>
#include <zero/optim/weight_average.hpp>

namespace zero::optim {
namespace {

using States = std::map<std::string, at::Tensor>;
using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

// A step has at most this many parts and one more, unless a parameter is larger than a part.
constexpr std::int64_t kParts = 16;

struct HostSlot {
  at::Tensor parameter;
  at::Tensor twin;           // on the host; without bytes before the first update
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

HostSlot slot_of(const at::Tensor& parameter) {
  const at::Tensor twin = memory::without_storage(parameter.sizes(), parameter.scalar_type());
  return {.parameter = parameter, .twin = twin.requires_grad_(parameter.requires_grad())};
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

class HostUpdate final : public Optimizer {
 public:
  HostUpdate(const OptimizerFactory& make, const std::vector<at::Tensor>& parameters,
             std::int64_t delay_after)
      : inner_(make(parameters)),  // which may know them by their names
        bus_(parameters.front().device()),
        delay_after_(delay_after) {
    for (const at::Tensor& p : parameters) slots_.add(slot_of(p));
    inner_->replace([this](const at::Tensor& p) { return twin_of(p); });
    averages_ = has_weight_average(*inner_);
    in_parts_ = !inner_->is_offloaded() && !averages_;
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
    HostSlots rest;
    for (HostSlot& slot : slots_) {
      if (slot.parameter.grad().defined() && !has_taken(slot)) rest.push_back(&slot);
    }
    take(rest);
    bus_.end();
  }

  void scale_gradients(const std::vector<at::Tensor>& gradients, double factor) override {
    HostSlots scaled;
    for (HostSlot& slot : slots_) {
      if (has_taken(slot)) scaled.push_back(&slot);
    }
    Optimizer::scale_gradients(gradients, factor);
    for (HostSlot* const slot : scaled) {
      slot->factors.push_back(factor);
      slot->taken_version = slot->parameter.grad()._version();
    }
  }

  void step() override {
    refuse_after_failure([this] { update_all(); });
  }

  bool may_be_late() const override { return delay_after_ != kNoDelay; }

  bool finish_update() override {
    bool was_late = false;
    refuse_after_failure([&] { was_late = finish_late(); });
    return was_late;
  }

  void replace(const std::function<at::Tensor(const at::Tensor&)>& with) override {
    forget_late();
    std::unordered_map<const at::TensorImpl*, at::Tensor> twins;  // from old to new
    slots_.replace(with, [&](HostSlot& slot, const at::Tensor& other) {
      at::Tensor& twin = twins[slot.twin.unsafeGetTensorImpl()];
      slot = other.defined() ? slot_of(other) : HostSlot{};
      twin = slot.twin;
    });
    inner_->replace([&](const at::Tensor& held) {
      const auto found = twins.find(held.unsafeGetTensorImpl());
      return found == twins.end() ? held : found->second;
    });
  }

  States state(const at::Tensor& parameter) const override {
    verify_not_failed();
    wait_for_late();
    return inner_->state(twin_of(parameter));
  }
  std::map<std::string, at::ScalarType> state_types(const at::Tensor& parameter) const override {
    wait_for_late();
    return inner_->state_types(twin_of(parameter));
  }
  std::int64_t steps(const at::Tensor& parameter) const override {
    wait_for_late();
    return inner_->steps(twin_of(parameter));
  }
  std::int64_t state_bytes(const at::Tensor& parameter) const override {
    wait_for_late();
    return inner_->state_bytes(twin_of(parameter));
  }
  std::size_t group_of(const at::Tensor& parameter) const override {
    wait_for_late();
    return inner_->group_of(twin_of(parameter));
  }
  Settings settings() const override { return inner_->settings(); }
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
    wait_for_late();
    OffloadTraffic traffic = inner_->offload_traffic();
    traffic.to_host_bytes = to_host_bytes_;
    traffic.to_device_bytes = to_device_bytes_;
    return traffic;
  }
  void stream_offloaded() override {
    wait_for_late();
    inner_->stream_offloaded();
  }

  void load_state(const at::Tensor& parameter, std::int64_t steps, const States& states) override {
    forget_late();
    States here;
    for (const auto& [name, state] : states) here[name] = state.cpu();
    inner_->load_state(twin_of(parameter), steps, here);
    slots_.find(parameter)->version = HostSlot::kUnknown;
    failure_.clear();
  }

  void set_gradient_scale(double scale) override {
    if (gradient_scale_ == scale) return;
    wait_for_late();
    inner_->set_gradient_scale(scale);
    gradient_scale_ = scale;
  }
  void set_learning_rate(double rate) override {
    wait_for_late();
    inner_->set_learning_rate(rate);
  }
  void set_learning_rates(const std::vector<double>& rates) override {
    wait_for_late();
    inner_->set_learning_rates(rates);
  }

 private:
  // What has failed may have updated some parameters: load_state() makes them whole again.
  template <typename Function>
  void refuse_after_failure(const Function& function) {
    verify_not_failed();
    try {
      function();
    } catch (const std::exception& error) {
      failure_ = message_of(error);
      throw;
    }
  }
  void verify_not_failed() const {
    if (failure_.empty()) return;
    throw Error("an update on the host has failed: load a checkpoint. The error was: " + failure_);
  }

  void update_all() {
    const at::NoGradGuard no_grad;
    finish_late();
    HostSlots due, late;
    std::int64_t all = 0;
    for (HostSlot& slot : slots_) {
      if (!slot.parameter.grad().defined()) continue;
      const bool waits = may_be_late() && inner_->steps(slot.twin) >= delay_after_;
      (waits ? late : due).push_back(&slot);
      if (!waits) all += slot.parameter.numel();
    }
    follow_parameters(due);
    follow_parameters(late);
    if (averages_) follow_parameters(averaged_without_gradient());
    finish_taking();
    bus_.wait();
    bus_.begin();  // what goes back waits for those who read; the host does not
    const auto end = c10::make_scope_exit([this] { bus_.end(); });
    HostSlots part;
    std::int64_t elements = 0;
    for (HostSlot* const slot : due) {
      part.push_back(slot);
      elements += slot->parameter.numel();
      if (slot != due.back() && (!in_parts_ || elements < all / kParts)) continue;
      update(std::exchange(part, {}));
      elements = 0;
    }
    if (!late.empty()) update_later(late);
  }

  bool finish_late() {
    if (late_.empty()) return false;
    const at::NoGradGuard no_grad;
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
    return true;
  }

  // Parameters without a gradient in this step whose average the inner optimizer keeps.
  HostSlots averaged_without_gradient() {
    HostSlots slots;
    for (HostSlot& slot : slots_) {
      if (!slot.parameter.grad().defined() && !inner_->state_types(slot.twin).empty()) {
        slots.push_back(&slot);
      }
    }
    return slots;
  }

  // Undefined if it does not hold the parameter.
  at::Tensor twin_of(const at::Tensor& parameter) const {
    const HostSlot* const slot = slots_.find(parameter);
    return slot == nullptr ? at::Tensor() : slot->twin;
  }

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
      if (!memory::has_storage(slot->twin)) {
        memory::place(slot->twin, room_on_host(slot->parameter).view({-1}), /*offset=*/0);
      }
      bus_.begin();
      to_host_bytes_ += bus_.copy(slot->twin, memory::raw(slot->parameter));
      slot->version = slot->parameter._version();
    }
  }

  static void show_gradients(const HostSlots& part) {
    for (HostSlot* const slot : part) {
      for (const double factor : std::exchange(slot->factors, {})) {
        at::_foreach_mul_({slot->gradient}, factor);
      }
      slot->taken.reset();
      slot->twin.mutable_grad() = slot->gradient;
    }
  }
  static void hide_gradients(const HostSlots& part) {
    for (HostSlot* const slot : part) slot->twin.mutable_grad().reset();
  }

  void update(const HostSlots& part) {
    const auto hide = c10::make_scope_exit([&] { hide_gradients(part); });
    show_gradients(part);
    inner_->step();
    send_back(part);
  }

  void send_back(const HostSlots& part) {
    for (HostSlot* const slot : part) {
      to_device_bytes_ += bus_.copy(memory::raw(slot->parameter), memory::raw(slot->twin));
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

  Slots<HostSlot> slots_;
  std::unique_ptr<Optimizer> inner_;
  Bus bus_;
  std::int64_t to_host_bytes_ = 0;
  std::int64_t to_device_bytes_ = 0;
  std::int64_t delay_after_;
  bool averages_;  // whether the inner one averages weights
  bool in_parts_;  // whether a step may be several of the inner one
  std::string failure_;
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
