#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAFunctions.h>
#include <fmt/format.h>
#include <torch/csrc/cuda/nccl.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <map>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include <zero/base/error.hpp>
#include <zero/distributed/agreement.hpp>
#include <zero/distributed/backend.hpp>
#include <zero/distributed/device/device_backend.hpp>
#include <zero/distributed/nccl/nccl.hpp>
#include <zero/memory/cuda_memory.hpp>

namespace zero::dist {
namespace {

// Identifies one GPU among all: the host, and the UUID that the driver reports.
std::string identity(int device) {
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  std::string text = fmt::format("{}, GPU ", host.data());
  for (const char byte : at::cuda::getDeviceProperties(device)->uuid.bytes) {
    text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  }
  return text;
}

void agree_on_gpus(StoreExchange& store, int device) {
  const auto all = on_all_ranks([&](const std::string& mine) { return store.exchange(mine); },
                                "the backend nccl cannot be used",
                                [&] {
                                  const std::string problem = memory::gpu_problem(device);
                                  if (!problem.empty()) throw Error(problem);
                                  return identity(device);
                                });
  std::map<std::string, std::size_t> users;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const auto [other, first] = users.emplace(all[rank], rank);
    if (!first && !ranks_may_share_a_gpu()) {
      throw Error(
          fmt::format("ranks {} and {} would both use {}: give each rank a GPU of its own (start "
                      "as many ranks on a machine as it has GPUs)",
                      other->second, rank, all[rank]));
    }
  }
}

DeviceGroup make_nccl_group(const StorePtr& store, int rank, int size,
                            std::chrono::milliseconds timeout) {
  // When a peer is lost or the time limit has passed, c10d's watchdog thread ends NCCL's kernels,
  // so that no stream or host waits forever. It must not end the process: an exception names the
  // operation.
  ::setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "2", /*overwrite=*/0);
  ::setenv("TORCH_NCCL_DUMP_ON_TIMEOUT", "0", /*overwrite=*/0);
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = timeout;
  return c10::make_intrusive<c10d::ProcessGroupNCCL>(
      c10::make_intrusive<c10d::PrefixStore>("nccl", store), rank, size, options);
}

int chosen_device(const Place& place) {
  if (!memory::gpu_problem().empty())
    return place.local_rank;  // agree_on_gpus() says what is wrong
  if (place.size == 1) return c10::cuda::current_device();
  return ranks_may_share_a_gpu() ? place.local_rank % c10::cuda::device_count() : place.local_rank;
}

}  // namespace

bool ranks_may_share_a_gpu() {
  // Major, minor and patch version in 16 bits each.
  constexpr std::uint64_t kFirst = std::uint64_t{2} << 32 | std::uint64_t{30} << 16;
  const char* variable = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  return variable != nullptr && std::string(variable) == "1" &&
         torch::cuda::nccl::version() >= kFirst;
}

void enable_nccl(const NcclOptions& nccl) {
  add_backend("nccl", at::kCUDA, [nccl](Place& place) -> std::unique_ptr<Backend> {
    const int device = nccl.device.value_or(chosen_device(place));
    agree_on_gpus(*place.store, device);
    place.options.order = nccl.order;
    return std::make_unique<DeviceBackend>(
        place, DeviceTransport{at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(device)),
                               fmt::format("NCCL on GPU {}", device), make_nccl_group});
  });
}

}  // namespace zero::dist
