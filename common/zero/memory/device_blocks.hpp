#pragma once

#include <cstddef>

namespace zero::memory {

/// Brings the blocks of a device's own allocator to the counts of accounting.hpp: whoever watches
/// that allocator calls these for each block. A block is charged to the category of the calling
/// thread's scope (Charge) and can be recharged like a CPU tensor's. Bytes are those that a tensor
/// asked for. Safe on any thread; must not be called by one that is inside accounting.hpp.
void device_block_allocated(const void* address, std::size_t bytes);

/// The block is free again. Nothing happens for one that was not announced.
void device_block_freed(const void* address);

}  // namespace zero::memory
