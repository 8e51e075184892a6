#pragma once

#include <cstdint>
#include <string>

/// Bytes on a GPU. This header and <zero/distributed/nccl/nccl.hpp> belong to the library
/// zero::cuda.
namespace zero::memory {

/// Empty if GPU `device` can be used, else the reason why not. It asks the CUDA driver, and ranks
/// that this process forks afterwards cannot use a GPU: call it in a rank, not in the launcher.
std::string gpu_problem(int device = 0);

/// What this process holds on one GPU, from LibTorch's caching allocator. Totals only;
/// accounting.hpp counts categories after count_cuda_blocks().
struct CudaMemory {
  std::int64_t total = 0;          ///< live bytes as tensors asked for them, like Snapshot::total
  std::int64_t total_peak = 0;     ///< peak of `total` since the start or reset_cuda_peaks()
  std::int64_t rounded = 0;        ///< live bytes, rounded up to the allocator's block sizes
  std::int64_t reserved = 0;       ///< taken from the driver, free blocks included
  std::int64_t reserved_peak = 0;  ///< peak of `reserved`
  std::int64_t allocations = 0;    ///< blocks handed out since the process began
};

/// From now on accounting.hpp counts every block that LibTorch's caching allocator hands out on the
/// GPUs of this process, with its category; earlier blocks are not counted. Call it once, and not
/// together with install(), or CPU blocks enter the same sums. Autograd runs the backward of CUDA
/// tensors on its own threads, where this thread's Charge has no effect: if categories matter,
/// switch that off (c10::AutogradState). zero::Error if there is no GPU.
void count_cuda_blocks();

/// Current values of GPU `device`. All zero before this process has put a tensor there. Does not
/// wait for the GPU: a block is free when the program has dropped it. zero::Error if there is no
/// such GPU.
CudaMemory cuda_memory(int device = 0);

/// Starts a new measurement: every peak of GPU `device` becomes the current value.
void reset_cuda_peaks(int device = 0);

}  // namespace zero::memory
