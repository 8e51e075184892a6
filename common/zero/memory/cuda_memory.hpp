#pragma once

#include <cstdint>
#include <string>

/// Bytes on a GPU. This header and <zero/distributed/nccl/nccl.hpp> belong to the library
/// zero::cuda.
namespace zero::memory {

/// Empty where GPU `device` can be used, else the reason why not. It asks the CUDA driver, after
/// which ranks that this process forks cannot use a GPU any more: ask in a rank.
std::string gpu_problem(int device = 0);

/// What this process holds on one GPU, from LibTorch's caching allocator. Totals only:
/// categories are counted by accounting.hpp, after count_cuda_blocks().
struct CudaMemory {
  std::int64_t total = 0;          ///< live bytes as tensors asked for them, like Snapshot::total
  std::int64_t total_peak = 0;     ///< peak of it since the start or reset_cuda_peaks()
  std::int64_t rounded = 0;        ///< live bytes in blocks of the allocator's sizes
  std::int64_t reserved = 0;       ///< taken from the driver, free blocks included
  std::int64_t reserved_peak = 0;  ///< peak of it
  std::int64_t allocations = 0;    ///< blocks handed out since the process began
};

/// From now on every block that LibTorch's caching allocator hands out on the GPUs of this process
/// is counted by accounting.hpp, with its category; blocks from before are not. Call it once, and
/// not install() beside it, or the blocks of CPU tensors are in the same sums. Autograd runs the
/// backward of CUDA tensors on threads of its own, which know nothing of this thread's Charge:
/// switch that off (c10::AutogradState) where categories matter. zero::Error where there is no GPU.
void count_cuda_blocks();

/// Now, on GPU `device`. All zero before this process has put a tensor there. Does not wait for the
/// GPU: a block is free when the program has dropped it. zero::Error where there is no such GPU.
CudaMemory cuda_memory(int device = 0);

/// Starts a new measurement: every peak of GPU `device` becomes the current value.
void reset_cuda_peaks(int device = 0);

}  // namespace zero::memory
