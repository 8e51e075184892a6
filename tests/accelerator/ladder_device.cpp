// The ladder on the emulated accelerator: in the place of device_cpu.cpp, in a program for tests.

#include <c10/core/AutogradState.h>

#include <tests/support/accelerator/accelerator.hpp>
#include <tests/support/accelerator/backend.hpp>
#include <tests/support/accelerator/checker.hpp>
#include <tools/ladder/device.hpp>

namespace zero::ladder {

const OtherDevice kOtherDevice = {"emulated", "emulated: the accelerator of the tests", "emulated"};

void use_gpus(char**) { testing::emulated::enable_backend(); }

std::int64_t free_gpu_bytes(int) { return std::int64_t{64} << 30; }

// What the checker finds is an error of the rank.
at::Device enter_gpu() {
  c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
  testing::emulated::Checker::get().throw_at_once(true);
  testing::emulated::count_blocks();
  return testing::emulated::kDevice;
}

}  // namespace zero::ladder
