#include <ATen/Context.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <fmt/format.h>

#include <zero/base/error.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/memory/cuda_memory.hpp>

namespace zero::memory {
namespace {

using c10::CachingDeviceAllocator::TraceEntry;

void note(const TraceEntry& entry) {
  const auto* address = reinterpret_cast<const void*>(entry.addr_);
  if (entry.action_ == TraceEntry::ALLOC) {
    device_block_allocated(address, static_cast<std::size_t>(entry.size_));
  } else if (entry.action_ == TraceEntry::FREE_REQUESTED) {
    device_block_freed(address);
  }
}

}  // namespace

std::string gpu_problem(int device) {
  int devices = 0;
  try {
    devices = c10::cuda::device_count_ensure_non_zero();
  } catch (const c10::Error& error) {
    const std::string cause = error.what_without_backtrace();
    return fmt::format("there is no usable GPU ({}); the backend gloo trains on the CPU",
                       cause.substr(0, cause.find('\n')));
  }
  if (device >= 0 && device < devices) return "";
  return fmt::format("there is no GPU {}: this machine shows {} to the program, numbered from 0",
                     device, devices);
}

void count_cuda_blocks() {
  const std::string problem = gpu_problem();
  if (!problem.empty()) throw Error("memory of GPUs: " + problem);
  // Tracing needs an allocator that has started.
  at::globalContext().lazyInitDevice(at::kCUDA);
  c10::cuda::CUDACachingAllocator::get()->attachAllocatorTraceTracker(note);
}

}  // namespace zero::memory
