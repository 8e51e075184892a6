#pragma once

#include <torch/types.h>

#include <cstdint>
#include <memory>

namespace zero::nn {

/// One block of memory for what the checkpoints of a pass keep (Rajbhandari et al. 2020, "ZeRO",
/// section 6.3). These tensors live from forward to backward, between others that are freed at
/// once; in a block of their own they do not break up the memory that the others use.
///
/// Memory is handed out in order, and all of it is free again when the last tensor in it is gone,
/// after backward. For one pass at a time: several forwards before a backward need room for all of
/// them. Acts on this rank alone.
class CheckpointArena {
 public:
  /// Allocates `bytes` on `device` at once, charged to memory::Category::kActivations.
  explicit CheckpointArena(std::int64_t bytes, at::Device device = at::kCPU);

  /// A contiguous copy of `values` in the arena, which keeps the memory alive. It takes a multiple
  /// of 64 bytes. Throws zero::Error that gives the sizes if there is no room, or if `values` are
  /// on another device.
  at::Tensor store(const at::Tensor& values);

  std::int64_t bytes() const;
  /// Bytes that are handed out.
  std::int64_t used() const;

 private:
  struct Block;
  std::shared_ptr<Block> block_;
};

}  // namespace zero::nn
