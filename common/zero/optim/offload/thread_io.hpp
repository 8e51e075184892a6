#pragma once

// Private to zero/optim/offload.

#include <memory>

#include <zero/optim/offload/block_io.hpp>

namespace zero::optim {

/// By pread() and pwrite() on threads.
std::unique_ptr<BlockIo> make_thread_io(int file);

}  // namespace zero::optim
