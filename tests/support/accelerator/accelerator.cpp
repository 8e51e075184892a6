#include "accelerator.hpp"

#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/Allocator.h>

#include <zero/memory/accounting.hpp>

#include "device_memory.hpp"
#include "generator.hpp"
#include "operations.hpp"
#include "pinned_memory.hpp"
#include "streams.hpp"

namespace zero::testing::emulated {
namespace {

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return kIndex; }
  void setCurrentDevice(c10::DeviceIndex index) const override {
    TORCH_CHECK(index == kIndex, "there is no device emulated:", static_cast<int>(index));
  }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex) const override { return kIndex; }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex) const override { return kIndex; }

  at::Device getDeviceFromPtr(void*) const override { return kDevice; }
  bool isPinnedPtr(const void* address) const override {
    return PinnedMemory::get().is_block(address);
  }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &PinnedMemory::get(); }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    return default_generator();
  }
  at::Generator getNewGenerator(c10::DeviceIndex) const override {
    return at::make_generator<Generator>();
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, std::size_t bytes) const override {
    resize_storage(storage, bytes);
  }
};

}  // namespace

void enable() {
  static const bool done = [] {
    c10::register_privateuse1_backend("emulated");
    at::RegisterPrivateUse1HooksInterface(new Hooks);
    c10::SetAllocator(kDevice.type(), &DeviceMemory::get());
    register_streams();
    register_operations();
    return true;
  }();
  (void)done;
}

void count_blocks() {
  DeviceMemory::get().observe(memory::device_block_allocated, memory::device_block_freed);
}

}  // namespace zero::testing::emulated
