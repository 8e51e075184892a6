#include "streams.hpp"

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <atomic>
#include <memory>
#include <utility>

#include "accelerator.hpp"
#include "checker.hpp"
#include "device_memory.hpp"

namespace zero::testing::emulated {
namespace {

thread_local c10::StreamId current = 0;

// As CUDA's: a pool of streams for each priority, handed out in turn. Stream 0 is the default.
constexpr c10::StreamId kPool = 32;

c10::Stream stream(c10::StreamId id) { return c10::Stream(c10::Stream::UNSAFE, kDevice, id); }

class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return kDevice.type(); }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }

  c10::Device getDevice() const override { return kDevice; }
  c10::Device exchangeDevice(c10::Device device) const override {
    setDevice(device);
    return kDevice;
  }
  void setDevice(c10::Device device) const override {
    TORCH_CHECK(device.index() <= 0, "there is no device ", device, ": there is one, emulated:0");
  }
  void uncheckedSetDevice(c10::Device) const noexcept override {}

  c10::Stream getStream(c10::Device) const override { return stream(current); }
  c10::Stream getDefaultStream(c10::Device) const override { return stream(0); }
  c10::Stream getStreamFromGlobalPool(c10::Device, bool high_priority) const override {
    static std::atomic<c10::StreamId> next_normal = 0, next_high = 0;
    return stream(high_priority ? 1 + kPool + next_high++ % kPool : 1 + next_normal++ % kPool);
  }
  c10::Stream getNewStream(c10::Device, int) const override {
    static std::atomic<c10::StreamId> next = 1 + 2 * kPool;
    return stream(next++);
  }
  c10::Stream exchangeStream(c10::Stream to) const override {
    return stream(std::exchange(current, to.id()));
  }

  bool queryStream(const c10::Stream& s) const override { return Checker::get().query(s.id()); }
  void synchronizeStream(const c10::Stream& s) const override {
    Checker::get().synchronize(s.id());
  }
  void synchronizeDevice(c10::DeviceIndex) const override { Checker::get().synchronize(); }

  void record(void** event, const c10::Stream& s, c10::DeviceIndex, c10::EventFlag) const override {
    if (*event == nullptr) *event = new Event;
    of(*event) = Checker::get().record(s.id());
  }
  void block(void* event, const c10::Stream& s) const override {
    Checker::get().block(s.id(), of(event));
  }
  bool queryEvent(void* event) const override { return Checker::get().query(of(event)); }
  void synchronizeEvent(void* event) const override { Checker::get().synchronize(of(event)); }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override {
    delete static_cast<Event*>(event);
  }
  double elapsedTime(void*, void*, c10::DeviceIndex) const override { return 0; }

  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& s) const override {
    DeviceMemory::get().recordStream(data, s);
  }

 private:
  static Event& of(void* event) { return *static_cast<Event*>(event); }
};

}  // namespace

c10::StreamId current_stream() { return current; }

void register_streams() { c10::impl::registerDeviceGuard(kDevice.type(), new Guard); }

}  // namespace zero::testing::emulated
