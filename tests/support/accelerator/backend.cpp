#include "backend.hpp"

#include <memory>

#include "accelerator.hpp"

namespace zero::testing {

dist::DeviceTransport emulated_transport(at::Device device, const ProcessGroupOptions& group,
                                         bool works_alone) {
  return {
      device, "the emulated process group",
      [group](const dist::StorePtr& store, int rank, int size, std::chrono::milliseconds timeout) {
        return make_process_group(store, rank, size, timeout, group);
      },
      works_alone};
}

void emulated::enable_backend(const ProcessGroupOptions& group, bool works_alone) {
  enable();
  dist::add_backend("emulated", kDevice.type(), [=](dist::Place& place) {
    return std::make_unique<dist::DeviceBackend>(place,
                                                 emulated_transport(kDevice, group, works_alone));
  });
}

}  // namespace zero::testing
