#pragma once

#include <c10/core/CachingDeviceAllocator.h>

#include <cstddef>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "checker.hpp"

namespace zero::testing::emulated {

/// The device's memory, with the rules of CUDA's caching allocator: a freed block belongs to the
/// stream on which it was allocated, and the next allocation of its size there gets it at once; if
/// other streams are recorded, not before their work is complete. Bytes are 0xff, which is NaN,
/// when a block is handed out and when it is freed. Blocks are rounded up to 512 bytes and never
/// split. The host cannot use them, as on a GPU: it would end by SIGSEGV, except between open() and
/// close(). Safe on any thread.
class DeviceMemory final : public c10::DeviceAllocator {
 public:
  static DeviceMemory& get();

  c10::DataPtr allocate(std::size_t bytes) override;
  c10::DeleterFnPtr raw_deleter() const override;
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t = {0, 0}) override;
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override;
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex) override;
  void resetAccumulatedStats(c10::DeviceIndex) override;
  void resetPeakStats(c10::DeviceIndex) override;

  /// Lets the host use the block that holds this address, until as many calls of close().
  void open(const void* address);
  void close(const void* address);

  /// From now on these functions are called for each block.
  void observe(std::function<void(const void*, std::size_t)> allocated,
               std::function<void(const void*)> freed);

 private:
  struct Block {
    std::size_t requested;
    std::size_t bytes;  // rounded up
    c10::StreamId stream;
    std::set<c10::StreamId> recorded;
    int opened = 0;
  };
  using Kind = std::pair<c10::StreamId, std::size_t>;  // stream and rounded size
  struct Waiting {
    void* address;
    Kind kind;
    Event event;
  };

  static void free_block(void* address);
  void free(void* address);
  void collect();
  void* take(const Kind& kind);
  void change_opened(const void* address, int by);
  template <class F>
  void for_each_stat(F function);
  static void poison(void* address, std::size_t bytes);

  mutable std::mutex mutex_;
  std::map<const void*, Block> blocks_;      // handed out
  std::map<Kind, std::vector<void*>> free_;  // the last freed is handed out first
  std::vector<Waiting> waiting_;             // freed; other streams' work is not complete
  c10::CachingDeviceAllocator::DeviceStats stats_;
  std::function<void(const void*, std::size_t)> allocated_;
  std::function<void(const void*)> freed_;
};

}  // namespace zero::testing::emulated
