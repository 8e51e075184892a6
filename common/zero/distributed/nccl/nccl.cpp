#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAFunctions.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <nccl.h>
#include <torch/csrc/cuda/nccl.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include <zero/base/error.hpp>
#include <zero/base/variable.hpp>
#include <zero/distributed/agreement.hpp>
#include <zero/distributed/backend.hpp>
#include <zero/distributed/device/device_backend.hpp>
#include <zero/distributed/nccl/nccl.hpp>
#include <zero/distributed/nccl/nccl_version.hpp>
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

void agree_on_gpus(const Place& place, int device) {
  const std::string mine = answer_of([&] {
    const std::string problem = memory::gpu_problem(device);
    if (!problem.empty()) throw Error(problem);
    return identity(device);
  });
  std::vector<std::string> all = exchange(place.cpu, place, mine);
  for (int r = 0; r < place.size; ++r) {
    std::string& answer = all[static_cast<std::size_t>(r)];
    answer = content_of(answer, fmt::format("the backend nccl cannot be used: rank {}: ",
                                            place.log->world_rank(r)));
  }
  if (!ranks_may_share_a_gpu()) verify_own_devices(all);
}

DeviceGroup make_nccl_group(const StorePtr& store, int rank, int size,
                            std::chrono::milliseconds timeout) {
  // When a peer is lost or the time limit has passed, c10d's watchdog thread ends NCCL's kernels,
  // so that no stream or host waits forever. It must not end the process: an exception names the
  // operation. For each failed Work it sleeps first, four times the last of these, whether others
  // write down meanwhile what they did or not (Watchdog::runLoop()); here nobody does. Nothing else
  // reads that number then.
  ::setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "2", /*overwrite=*/0);
  ::setenv("TORCH_NCCL_DUMP_ON_TIMEOUT", "0", /*overwrite=*/0);
  ::setenv("TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", "0", /*overwrite=*/0);
  auto options = c10d::ProcessGroupNCCL::Options::create(/*is_high_priority_stream=*/true);
  options->timeout = timeout;
  return c10::make_intrusive<c10d::ProcessGroupNCCL>(store, rank, size, options);
}

// That of the NCCL which this process has loaded. torch::cuda::nccl::version() is that of
// LibTorch's header, and a newer NCCL may have been loaded. Without the symbol NCCL is a part of
// LibTorch.
int running_version() {
  int version = NCCL_VERSION_CODE;
  if (void* asked = ::dlsym(RTLD_DEFAULT, "ncclGetVersion")) {
    reinterpret_cast<decltype(&ncclGetVersion)>(asked)(&version);
  }
  return version;
}

int chosen_device(const Place& place) {
  if (!memory::gpu_problem().empty()) return place.local_rank;  // agree_on_gpus() says why
  if (place.size == 1) return c10::cuda::current_device();
  // Launchers show a rank all GPUs of the machine or only its own, whose number is then 0.
  return place.local_rank % c10::cuda::device_count();
}

}  // namespace

bool ranks_may_share_a_gpu() {
  return base::variable("NCCL_MULTI_RANK_GPU_ENABLE") == "1" &&
         running_version() >= NCCL_VERSION(2, 30, 0);
}

void enable_nccl(const NcclOptions& nccl) {
  const std::string problem = nccl_version_problem(NCCL_VERSION_CODE, torch::cuda::nccl::version());
  if (!problem.empty()) throw Error("the backend nccl cannot be used: " + problem);
  add_backend("nccl", at::kCUDA, [nccl](Place& place) -> std::unique_ptr<Backend> {
    const int device = nccl.device.value_or(chosen_device(place));
    agree_on_gpus(place, device);
    place.options.order = nccl.order;
    return std::make_unique<DeviceBackend>(
        place,
        DeviceTransport{at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(device)),
                        fmt::format("NCCL on GPU {}", device), make_nccl_group, nccl.works_alone});
  });
}

}  // namespace zero::dist
