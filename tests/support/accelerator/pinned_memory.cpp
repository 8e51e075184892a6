#include "pinned_memory.hpp"

#include <c10/core/impl/alloc_cpu.h>

namespace zero::testing::emulated {

PinnedMemory& PinnedMemory::get() {
  static auto* const memory = new PinnedMemory;  // outlives tensors that are freed at exit
  return *memory;
}

c10::DataPtr PinnedMemory::allocate(std::size_t bytes) {
  void* const address = c10::alloc_cpu(bytes);
  const std::lock_guard lock(mutex_);
  if (address != nullptr) blocks_[address] = bytes;
  return {address, address, &free_block, c10::Device(c10::kCPU)};
}

void PinnedMemory::free_block(void* address) {
  if (address == nullptr) return;
  {
    const std::lock_guard lock(get().mutex_);
    get().blocks_.erase(address);
  }
  c10::free_cpu(address);
}

bool PinnedMemory::is_block(const void* address) const {
  const std::lock_guard lock(mutex_);
  return blocks_.count(address) != 0;
}

std::int64_t PinnedMemory::bytes() const {
  const std::lock_guard lock(mutex_);
  std::int64_t sum = 0;
  for (const auto& [address, bytes] : blocks_) sum += static_cast<std::int64_t>(bytes);
  return sum;
}

}  // namespace zero::testing::emulated
