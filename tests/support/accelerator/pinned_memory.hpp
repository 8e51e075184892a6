#pragma once

#include <c10/core/Allocator.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

namespace zero::testing::emulated {

/// Host memory that LibTorch takes for page-locked. Safe on any thread.
class PinnedMemory final : public c10::Allocator {
 public:
  static PinnedMemory& get();

  c10::DataPtr allocate(std::size_t bytes) override;
  c10::DeleterFnPtr raw_deleter() const override { return &free_block; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

  /// Whether a block begins at this address.
  bool is_block(const void* address) const;
  /// Bytes that are handed out.
  std::int64_t bytes() const;

 private:
  static void free_block(void* address);

  mutable std::mutex mutex_;
  std::map<const void*, std::size_t> blocks_;  // and their bytes
};

}  // namespace zero::testing::emulated
