#pragma once

#include <c10/core/Device.h>

/// An emulated accelerator: a device of LibTorch (PrivateUse1, named "emulated") with streams,
/// events and a caching allocator, whose kernels are the CPU's. Results have the bits of the CPU;
/// checker.hpp finds what they cannot show, such as a missing wait between streams.
namespace zero::testing::emulated {

/// The only device of this type.
inline constexpr c10::DeviceIndex kIndex = 0;
inline const c10::Device kDevice(c10::DeviceType::PrivateUse1, kIndex);

/// Makes the device known to LibTorch. Call it before any tensor is made there; a second call does
/// nothing. Processes that are forked afterwards have it, too.
void enable();

/// From now on accounting.hpp of zero::memory counts every block of the device, as
/// count_cuda_blocks() does for GPUs.
void count_blocks();

}  // namespace zero::testing::emulated
