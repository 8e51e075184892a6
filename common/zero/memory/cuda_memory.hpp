#pragma once

#include <string>

/// Bytes on a GPU. This header and <zero/distributed/nccl/nccl.hpp> belong to the library
/// zero::cuda.
namespace zero::memory {

/// Empty if GPU `device` can be used, else the reason why not. It asks the CUDA driver, and ranks
/// that this process forks afterwards cannot use a GPU: call it in a rank, not in the launcher.
std::string gpu_problem(int device = 0);

/// From now on accounting.hpp counts every block that LibTorch's caching allocator hands out on the
/// GPUs of this process, with its category; earlier blocks are not counted. Call it once, and not
/// together with install(), or CPU blocks enter the same sums. Autograd runs the backward of CUDA
/// tensors on its own threads, where this thread's Charge has no effect: if categories matter,
/// switch that off (c10::AutogradState). zero::Error if there is no GPU.
void count_cuda_blocks();

}  // namespace zero::memory
