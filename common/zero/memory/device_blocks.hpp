#pragma once

#include <cstddef>

namespace zero::memory {

/// Adds the blocks of a device's own allocator to the counts of accounting.hpp: the code that
/// traces that allocator calls these for each block. A block is charged to the category of the
/// calling thread's scope (Charge) and can be recharged like a CPU tensor's. Bytes are as requested
/// for the tensor. Safe on any thread, except inside accounting.hpp (its lock is held there).
void device_block_allocated(const void* address, std::size_t bytes);

/// The block has been freed. Does nothing for a block that was never announced.
void device_block_freed(const void* address);

}  // namespace zero::memory
