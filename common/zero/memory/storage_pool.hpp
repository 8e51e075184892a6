#pragma once

#include <torch/types.h>

#include <cstddef>
#include <map>
#include <string>

#include <zero/memory/accounting.hpp>
#include <zero/memory/storage.hpp>

namespace zero::memory {

/// release_storage() and allocate_storage() of storage.hpp for buffers that are freed and allocated
/// many times a step: released bytes are kept for the next tensor of the same size.
///
/// Otherwise freed large blocks return to the operating system. When they are allocated again, each
/// page is zeroed in a page fault of its own, which costs more than copying the block. Kept bytes
/// are freed when another size is needed, so that used and kept bytes together never exceed the
/// most that were in use at one time. clear() the pool at the end of a backward pass, or the kept
/// bytes count as held for nothing.
/// Acts on this rank alone; for one thread at a time.
class StoragePool {
 public:
  /// `keeps`: false for a pool that frees at once, to measure what keeping saves.
  explicit StoragePool(bool keeps = true) : keeps_(keeps) {}

  /// Gives `tensor` bytes, uninitialised, charged to `category`: kept bytes of the same number if
  /// there are any, else new ones. Does nothing if the tensor has its bytes.
  void allocate(const at::Tensor& tensor, Category category);

  /// Takes the bytes of `tensor`, which must span its whole storage; until allocate() an access to
  /// them throws c10::Error with `message`. They stay charged to their category until they are
  /// reused or cleared.
  void release(const at::Tensor& tensor, const std::string& message = kReleased);

  /// Frees all kept bytes.
  void clear() { free_.clear(); }

  /// Number of kept bytes.
  std::size_t bytes() const;

 private:
  void make_room(std::size_t bytes);

  bool keeps_;
  std::multimap<std::size_t, at::DataPtr> free_;  // by number of bytes
};

}  // namespace zero::memory
