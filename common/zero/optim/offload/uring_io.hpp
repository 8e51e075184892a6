#pragma once

// Private to zero/optim/offload.

#include <memory>

#include <zero/optim/offload/block_io.hpp>

namespace zero::optim {

/// By io_uring; null if the library was built without liburing or the kernel forbids it.
std::unique_ptr<BlockIo> make_uring_io(int file);

}  // namespace zero::optim
