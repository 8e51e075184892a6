#pragma once

#include <torch/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include <zero/memory/charge.hpp>

/// Bytes, as the allocator counts them.
///
/// The sum of tensor sizes is what a program believes it holds; this file measures what it really
/// holds. A counting allocator stands under every CPU tensor of LibTorch, and every block is
/// charged to a category when it is allocated. So a stage that keeps a full copy by mistake shows
/// up here, even if its own bookkeeping does not mention it.
namespace zero::memory {

inline constexpr std::size_t kCategories = 6;

/// Lower-case name of a category, as in tables and JSON: "parameters", "gradients", …
std::string_view name(Category category);

/// Live and peak bytes of this process. Counted bytes are those that LibTorch asked for: no header,
/// no rounding by malloc.
struct Snapshot {
  std::array<std::int64_t, kCategories> current{};  ///< live bytes by category
  std::array<std::int64_t, kCategories> peak{};     ///< each category's own peak
  std::int64_t total = 0;                           ///< live bytes, the sum of `current`
  std::int64_t total_peak = 0;   ///< peak of the total (not the sum of the categories' peaks)
  std::int64_t states_peak = 0;  ///< peak of model_states()
  std::int64_t allocations = 0;  ///< blocks handed out since the process began

  std::int64_t operator[](Category c) const { return current[static_cast<std::size_t>(c)]; }
  std::int64_t peak_of(Category c) const { return peak[static_cast<std::size_t>(c)]; }
  /// Parameters + gradients + optimizer: the model states of the ZeRO paper (section 3.1).
  std::int64_t model_states() const;
};

/// Makes the counting allocator LibTorch's CPU allocator, for the rest of the process. Earlier
/// blocks stay valid and are not counted. Calling it again does nothing.
void install();

/// Live and peak bytes now. Cheap: a few loads. All zero before install().
Snapshot snapshot();

/// Starts a new measurement of peaks: every peak becomes the current value.
void reset_peaks();

/// From now on calls `observer` with the counts after every change, on the thread that made it and
/// under the allocator's lock; null: no longer.
void on_change(void (*observer)(const Snapshot&));

/// Moves the block under `tensor` to another category (views share one block). Autograd allocates
/// gradients as if they were activations; the hook that receives a gradient recharges it. Does
/// nothing for an undefined tensor or a block that the counting allocator did not allocate.
void recharge(const at::Tensor& tensor, Category category);

/// Memory of which the counting allocator takes large blocks: other ranks can read it in place.
class LargeBlocks {
 public:
  virtual ~LargeBlocks() = default;
  /// Null if there is no room.
  virtual void* take(std::int64_t bytes) = 0;
  virtual void give_back(const void* block) = 0;
  virtual bool contains(const void* address) const = 0;
  /// False in a forked child, which can neither take blocks nor read them.
  virtual bool is_mine() const = 0;
};

/// From now on install()'s allocator takes large blocks from `blocks`, those of optimizer states
/// excepted, which are never sent. It must live as long as the process.
void take_large_blocks_from(LargeBlocks* blocks);

/// Adds the blocks of a device's own allocator to the counts: the code that
/// traces that allocator calls these for each block. A block is charged to the category of the
/// calling thread's scope (Charge) and can be recharged like a CPU tensor's. Bytes are as requested
/// for the tensor. Safe on any thread, except in an observer (a lock is held there).
void device_block_allocated(const void* address, std::size_t bytes);

/// The block has been freed. Does nothing for a block that was never announced.
void device_block_freed(const void* address);

}  // namespace zero::memory
