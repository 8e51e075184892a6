#pragma once

#include <zero/distributed/device/device_backend.hpp>

#include "process_group.hpp"

namespace zero::testing {

/// What carries a DeviceBackend's tensors over make_process_group().
dist::DeviceTransport emulated_transport(at::Device device, const ProcessGroupOptions& group = {},
                                         bool works_alone = false);

namespace emulated {

/// Makes the device known, and the backend "emulated" available to connect() and on_ranks(), as
/// enable_nccl() does for GPUs: tensors of the device travel over the emulated process group, CPU
/// tensors over TCP. Each rank has a device of its own. A second call replaces the options.
void enable_backend(const ProcessGroupOptions& group = {}, bool works_alone = false);

}  // namespace emulated

}  // namespace zero::testing
