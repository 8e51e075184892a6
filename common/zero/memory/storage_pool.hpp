#pragma once

#include <torch/types.h>

#include <cstddef>
#include <map>
#include <string>

#include <zero/memory/accounting.hpp>
#include <zero/memory/storage.hpp>

namespace zero::memory {

/// release_storage() and allocate_storage() of storage.hpp for buffers that come and go many times
/// a step: what was released is kept for the next tensor of the same number of bytes.
///
/// Large blocks that are freed go back to the operating system, and come back page by page, each
/// page zeroed in a fault of its own when it is first written. That costs more than copying the
/// block does. What is kept gives way to what is needed in another size, so that the bytes in use
/// and kept are never more than were once in use at the same time. clear() the pool where they
/// would count as held for nothing, at the end of a backward pass.
///
/// Acts on this rank alone; for one thread at a time.
class StoragePool {
 public:
  /// `keeps`: false for a pool that frees what is released, to see what keeping is worth.
  explicit StoragePool(bool keeps = true) : keeps_(keeps) {}

  /// Gives `tensor` bytes, uninitialised, charged to `category`: those of a released tensor if one
  /// had as many, else new ones. Nothing to do where it has them.
  void allocate(const at::Tensor& tensor, Category category);

  /// Takes the bytes of `tensor`, which must span its whole storage; an access to them until
  /// allocate() is an error that says `message`. They stay charged to their category until they are
  /// used again or cleared.
  void release(const at::Tensor& tensor, const std::string& message = kReleased);

  /// Frees what is kept.
  void clear() { free_.clear(); }

  /// Bytes that are kept.
  std::size_t bytes() const;

 private:
  void make_room(std::size_t bytes);

  bool keeps_;
  std::multimap<std::size_t, at::DataPtr> free_;  // by number of bytes
};

}  // namespace zero::memory
