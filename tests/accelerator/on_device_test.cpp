// The tests of tests/on_device on the emulated accelerator, and those of the engine on the CPU.

#include <tests/on_device/on_device.hpp>
#include <tests/support/accelerator/emulated_test.hpp>

namespace zero::testing {
namespace {

std::string always(int) { return ""; }

void run_on_cpu(int ranks, dist::ReductionOrder order,
                const std::function<void(dist::Communicator&)>& body) {
  on_ranks({.world_size = ranks, .order = order}, body);
}

void run_emulated(int ranks, dist::ReductionOrder order,
                  const std::function<void(dist::Communicator&)>& body) {
  // One rank, which has no order, calls the process group too.
  const bool alone = ranks == 1;
  emulated::on_emulated_ranks(
      {.world_size = ranks, .order = alone ? dist::ReductionOrder::kNative : order}, body, alone);
}

std::string enabled(int) {
  emulated::enable();
  return "";
}

int waits_in(const std::function<void()>& action) {
  const auto before = emulated::Checker::get().counts().host_waits;
  action();
  return static_cast<int>(emulated::Checker::get().counts().host_waits - before);
}

const DeviceKind kCpu{"the CPU", at::kCPU, always, run_on_cpu};
const DeviceKind kEmulated{"the emulated accelerator", at::kPrivateUse1, enabled, run_emulated,
                           emulated::count_blocks,     waits_in};

INSTANTIATE_TEST_SUITE_P(Emulated, OneDevice, ::testing::Values(kEmulated),
                         [](const auto&) { return std::string("N1"); });
INSTANTIATE_TEST_SUITE_P(Emulated, EngineOn,
                         ::testing::Values(Where{kEmulated, 1}, Where{kEmulated, 2},
                                           Where{kEmulated, 3}),
                         name_of_where);
INSTANTIATE_TEST_SUITE_P(Cpu, EngineOn, ::testing::Values(Where{kCpu, 1}, Where{kCpu, 2}),
                         name_of_where);
INSTANTIATE_TEST_SUITE_P(Emulated, StreamsOn,
                         ::testing::Values(Where{kEmulated, 1}, Where{kEmulated, 3}),
                         name_of_where);
INSTANTIATE_TEST_SUITE_P(Emulated, CollectivesOn, ::testing::Values(Where{kEmulated, 3}),
                         name_of_where);

}  // namespace
}  // namespace zero::testing
