#include <ATen/Context.h>
#include <ATen/ops/ones.h>
#include <c10/core/AutogradState.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/cuda/CUDAFunctions.h>

#include <algorithm>
#include <cstdlib>
#include <string>

#include <zero/base/error.hpp>
#include <zero/distributed/nccl/nccl.hpp>
#include <zero/memory/cuda_memory.hpp>

#include "device.hpp"

namespace zero::ladder {

const OtherDevice kOtherDevice = kGpu;
namespace {

constexpr const char* kNotAsked = "--device cuda: the GPUs could not be queried";

// Makes attention and matrix products sum in the same order in every run, so that modes can be
// compared bit by bit.
void settle_order_of_sums() {
  at::Context& context = at::globalContext();
  context.setDeterministicAlgorithms(true, /*warn_only=*/true);
  context.setDeterministicFillUninitializedMemory(false);
  context.setSDPUseFlash(false);
  context.setSDPUseMemEfficient(false);
  context.setSDPUseCuDNN(false);
}

}  // namespace

void use_gpus(char**) {
  // Makes cuBLAS sum in the same order in every run. It reads the variable when it starts.
  ::setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
  const std::string problem = ask_elsewhere([] { return memory::gpu_problem(); }, kNotAsked);
  if (!problem.empty()) throw Error("--device cuda: " + problem);
  // On more than two ranks, only sums in rank order give all modes the same weights.
  dist::enable_nccl({.device = {}, .order = dist::ReductionOrder::kRankOrdered});
}

std::int64_t free_gpu_bytes(int ranks) {
  const auto smallest_times_gpus = [ranks] {
    const int gpus = std::min<int>(c10::cuda::device_count(), ranks);
    std::size_t smallest = 0;
    for (int gpu = 0; gpu < gpus; ++gpu) {
      const auto device = static_cast<c10::DeviceIndex>(gpu);
      const std::size_t bytes = c10::getDeviceAllocator(at::kCUDA)->getMemoryInfo(device).first;
      smallest = gpu == 0 ? bytes : std::min(smallest, bytes);
    }
    return std::to_string(smallest * static_cast<std::size_t>(gpus));
  };
  return std::stoll(ask_elsewhere(smallest_times_gpus, kNotAsked));
}

at::Device enter_gpu() {
  settle_order_of_sums();
  // Run backward on this thread: a block is charged to the category of its thread's scope.
  c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
  const at::Device device(at::kCUDA, c10::cuda::current_device());
  // cuBLAS allocates memory of its own in its first product: do that before the count begins.
  const at::Tensor one = at::ones({64, 64}, at::TensorOptions(device));
  at::addmm(one, one, one.mm(one));
  memory::count_cuda_blocks();
  return device;
}

}  // namespace zero::ladder
