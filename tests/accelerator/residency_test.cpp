// What training holds on the emulated accelerator, by the device's own allocator: the bytes of the
// formulas at rest, and the peak that it has on the CPU.

#include <c10/core/AutogradState.h>

#include <tests/support/accelerator/device_memory.hpp>
#include <tests/support/accelerator/emulated_test.hpp>
#include <tests/support/states.hpp>

#include "toy_on.hpp"

namespace zero::testing {
namespace {

c10::CachingAllocator::Stat device_bytes() {
  return emulated::DeviceMemory::get().getDeviceStats(0).requested_bytes[0];
}

struct Held {
  std::string states;        // at rest, by category
  std::int64_t states_peak;  // in the second step
  train::ModelStateBytes costs;
  std::int64_t on_device;    // at rest
  std::int64_t device_peak;  // in the second step
  std::int64_t total_peak;   // of both devices
};

Held held_on(at::Device device, dist::Communicator& communicator, const std::string& mode) {
  const memory::Snapshot before = memory::snapshot();
  const std::int64_t device_before = device_bytes().current;
  ToyOn run(communicator, mode, device);
  run.step(0);
  run.trainer->zero_grad();
  memory::reset_peaks();
  emulated::DeviceMemory::get().resetPeakStats(0);
  run.step(1);
  return {
      text_of(states_since(before)),       memory::snapshot().states_peak - before.model_states(),
      run.strategy->costs().at_rest,       device_bytes().current - device_before,
      device_bytes().peak - device_before, memory::snapshot().total_peak - before.total};
}

ZERO_TESTS_ON_RANKS(EmulatedResidency, 1, 2, 3);

// Sums in rank order would have scratch on the device.
TEST_P(EmulatedResidency, IsThatOfTheFormulaAndThePeakThatOfTheCpu) {
  emulated::on_emulated_ranks(
      {.world_size = GetParam(), .order = dist::ReductionOrder::kNative},
      [](dist::Communicator& communicator) {
        emulated::count_blocks();
        // A block is charged to the category of its thread's scope.
        c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
        for (const std::string& mode : all_modes()) {
          SCOPED_TRACE(mode);
          const Held here = held_on(emulated::kDevice, communicator, mode);
          const Held on_cpu = held_on(at::kCPU, communicator, mode);
          EXPECT_EQ(here.states, text_of(here.costs));
          EXPECT_LE(here.on_device - here.costs.total(), 64);
          EXPECT_EQ(here.states_peak, on_cpu.states_peak);
          EXPECT_GE(here.device_peak, here.states_peak);
          EXPECT_LE(here.device_peak, on_cpu.total_peak);
        }
      });
}

}  // namespace
}  // namespace zero::testing
