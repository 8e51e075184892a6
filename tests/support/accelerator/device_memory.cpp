#include "device_memory.hpp"

#include <c10/util/Exception.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <iterator>

#include "accelerator.hpp"
#include "streams.hpp"

namespace zero::testing::emulated {
namespace {

constexpr std::size_t kUnit = 512;
constexpr int kPoison = 0xff;

constexpr std::size_t kPage = 4096;

std::size_t pages(std::size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

void protect(void* address, std::size_t bytes, bool usable) {
  const int rights = usable ? PROT_READ | PROT_WRITE : PROT_NONE;
  TORCH_CHECK(::mprotect(address, pages(bytes), rights) == 0, "mprotect: ", std::strerror(errno));
}

constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);

}  // namespace

DeviceMemory& DeviceMemory::get() {
  static auto* const memory = new DeviceMemory;  // outlives tensors that are freed at exit
  return *memory;
}

void DeviceMemory::poison(void* address, std::size_t bytes) {
  protect(address, bytes, true);
  std::memset(address, kPoison, bytes);
  protect(address, bytes, false);
}

void DeviceMemory::collect() {
  std::erase_if(waiting_, [&](Waiting& block) {
    if (!Checker::get().complete(block.event)) return false;
    free_[block.kind].push_back(block.address);
    stats_.active_bytes[kAll].decrease(block.kind.second);
    return true;
  });
}

void* DeviceMemory::take(const Kind& kind) {
  std::vector<void*>& blocks = free_[kind];
  if (blocks.empty()) {
    void* const address =
        ::mmap(nullptr, pages(kind.second), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, /*fd=*/-1, 0);
    TORCH_CHECK(address != MAP_FAILED, "the emulated device has no ", kind.second, " bytes");
    stats_.reserved_bytes[kAll].increase(kind.second);
    return address;
  }
  void* const address = blocks.back();
  blocks.pop_back();
  return address;
}

c10::DataPtr DeviceMemory::allocate(std::size_t bytes) {
  if (bytes == 0) return {nullptr, nullptr, &free_block, kDevice};
  const Kind kind(current_stream(), (bytes + kUnit - 1) / kUnit * kUnit);
  void* address = nullptr;
  {
    const std::lock_guard lock(mutex_);
    collect();
    address = take(kind);
    blocks_[address] = {bytes, kind.second, kind.first, {}, 0};
    stats_.allocation[kAll].increase(1);
    stats_.requested_bytes[kAll].increase(bytes);
    stats_.allocated_bytes[kAll].increase(kind.second);
    stats_.active_bytes[kAll].increase(kind.second);
  }
  poison(address, kind.second);
  Checker::get().allocated(address, bytes, kind.first);
  if (allocated_) allocated_(address, bytes);
  return {address, address, &free_block, kDevice};
}

void DeviceMemory::free_block(void* address) {
  if (address != nullptr) get().free(address);
}

c10::DeleterFnPtr DeviceMemory::raw_deleter() const { return &free_block; }

void DeviceMemory::free(void* address) {
  if (freed_) freed_(address);
  const std::lock_guard lock(mutex_);
  const auto found = blocks_.find(address);
  TORCH_INTERNAL_ASSERT(found != blocks_.end());
  const Block block = found->second;
  blocks_.erase(found);
  poison(address, block.bytes);
  const Event event = Checker::get().freed(address, block.recorded);
  stats_.allocation[kAll].decrease(1);
  stats_.requested_bytes[kAll].decrease(block.requested);
  stats_.allocated_bytes[kAll].decrease(block.bytes);
  const Kind kind(block.stream, block.bytes);
  if (block.recorded.empty()) {
    free_[kind].push_back(address);
    stats_.active_bytes[kAll].decrease(block.bytes);
  } else {
    waiting_.push_back({address, kind, event});
  }
}

void DeviceMemory::emptyCache(c10::MempoolId_t) {
  const std::lock_guard lock(mutex_);
  collect();
  for (auto& [kind, blocks] : free_) {
    for (void* const address : blocks) {
      ::munmap(address, pages(kind.second));
      stats_.reserved_bytes[kAll].decrease(kind.second);
    }
  }
  free_.clear();
}

void DeviceMemory::recordStream(const c10::DataPtr& data, c10::Stream stream) {
  const std::lock_guard lock(mutex_);
  const auto found = blocks_.find(data.get());
  if (found == blocks_.end() || found->second.stream == stream.id()) return;
  found->second.recorded.insert(stream.id());
}

c10::CachingDeviceAllocator::DeviceStats DeviceMemory::getDeviceStats(c10::DeviceIndex) {
  const std::lock_guard lock(mutex_);
  return stats_;
}

template <class F>
void DeviceMemory::for_each_stat(F function) {
  const std::lock_guard lock(mutex_);
  for (auto* const stat : {&stats_.allocation, &stats_.requested_bytes, &stats_.allocated_bytes,
                           &stats_.active_bytes, &stats_.reserved_bytes}) {
    function((*stat)[kAll]);
  }
}

void DeviceMemory::resetAccumulatedStats(c10::DeviceIndex) {
  for_each_stat([](auto& stat) { stat.reset_accumulated(); });
}

void DeviceMemory::resetPeakStats(c10::DeviceIndex) {
  for_each_stat([](auto& stat) { stat.reset_peak(); });
}

void DeviceMemory::open(const void* address) { change_opened(address, 1); }

void DeviceMemory::close(const void* address) { change_opened(address, -1); }

void DeviceMemory::change_opened(const void* address, int by) {
  const std::lock_guard lock(mutex_);
  const auto next = blocks_.upper_bound(address);
  if (next == blocks_.begin()) return;
  auto& [begin, block] = *std::prev(next);
  // A view may outlive the bytes of its tensor.
  if (address >= static_cast<const char*>(begin) + block.bytes || block.opened + by < 0) return;
  const bool before = block.opened > 0;
  block.opened += by;
  const bool now = block.opened > 0;
  if (now != before) protect(const_cast<void*>(begin), block.bytes, now);
}

void DeviceMemory::observe(std::function<void(const void*, std::size_t)> allocated,
                           std::function<void(const void*)> freed) {
  allocated_ = std::move(allocated);
  freed_ = std::move(freed);
}

}  // namespace zero::testing::emulated
