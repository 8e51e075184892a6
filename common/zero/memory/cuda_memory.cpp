#include <ATen/Context.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <fmt/format.h>

#include <zero/base/error.hpp>
#include <zero/memory/cuda_memory.hpp>
#include <zero/memory/device_blocks.hpp>

namespace zero::memory {
namespace {

using c10::cuda::CUDACachingAllocator::get;

// The sum over the allocator's two pools, for small blocks and for large ones.
constexpr auto kBoth = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);

// False until the allocator is first used: it knows no devices before.
bool in_use(int device) {
  const std::string problem = gpu_problem(device);
  if (!problem.empty()) throw Error("memory of GPU " + std::to_string(device) + ": " + problem);
  return get() != nullptr && get()->initialized();
}

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
  get()->attachAllocatorTraceTracker(note);
}

CudaMemory cuda_memory(int device) {
  if (!in_use(device)) return {};
  const auto stats = get()->getDeviceStats(static_cast<c10::DeviceIndex>(device));
  const auto& requested = stats.requested_bytes[kBoth];
  const auto& reserved = stats.reserved_bytes[kBoth];
  return {.total = requested.current,
          .total_peak = requested.peak,
          .rounded = stats.allocated_bytes[kBoth].current,
          .reserved = reserved.current,
          .reserved_peak = reserved.peak,
          .allocations = stats.allocation[kBoth].allocated};
}

void reset_cuda_peaks(int device) {
  if (in_use(device)) get()->resetPeakStats(static_cast<c10::DeviceIndex>(device));
}

}  // namespace zero::memory
