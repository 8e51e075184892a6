// The tests of tests/on_device on GPUs.

#include <ATen/Context.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/util/Exception.h>

#include <cstdlib>

#include <tests/on_device/on_device.hpp>
#include <zero/memory/cuda_memory.hpp>

#include "gpu_test.hpp"

namespace zero::testing {
namespace {

// How often the host waits for the GPU in `action`, as LibTorch's own warnings say.
int waits_in(const std::function<void()>& action) {
  struct Counter : c10::WarningHandler {
    void process(const c10::Warning& warning) override {
      if (warning.msg().find("synchronizing CUDA operation") != std::string::npos) ++count;
    }
    int count = 0;
  } counter;
  const c10::WarningUtils::WarningHandlerGuard guard(&counter);
  c10::cuda::warning_state().set_sync_debug_mode(c10::cuda::SyncDebugMode::L_WARN);
  action();
  c10::cuda::warning_state().set_sync_debug_mode(c10::cuda::SyncDebugMode::L_DISABLED);
  return counter.count;
}

void run_on_gpus(int ranks, dist::ReductionOrder order,
                 const std::function<void(dist::Communicator&)>& body) {
  ::setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
  dist::testing::on_gpus(ranks, order, [&](dist::Communicator& c) {
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
    body(c);
  });
}

const DeviceKind kGpus{
    "GPUs",  at::kCUDA, dist::testing::why_no_gpus_once, run_on_gpus, memory::count_cuda_blocks,
    waits_in};

INSTANTIATE_TEST_SUITE_P(Gpu, OneDevice, ::testing::Values(kGpus),
                         [](const auto&) { return std::string("N1"); });
INSTANTIATE_TEST_SUITE_P(Gpu, EngineOn, ::testing::Values(Where{kGpus, 1}, Where{kGpus, 2}),
                         name_of_where);
INSTANTIATE_TEST_SUITE_P(Gpu, StreamsOn, ::testing::Values(Where{kGpus, 1}, Where{kGpus, 3}),
                         name_of_where);
INSTANTIATE_TEST_SUITE_P(Gpu, CollectivesOn, ::testing::Values(Where{kGpus, 3}), name_of_where);

}  // namespace
}  // namespace zero::testing
