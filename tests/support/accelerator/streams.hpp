#pragma once

#include <c10/core/Stream.h>

namespace zero::testing::emulated {

/// This thread's current stream of the device.
c10::StreamId current_stream();

/// Makes the device's streams and events known to LibTorch. They are logical: kernels run at once,
/// and events carry the checker's clocks. See Checker.
void register_streams();

}  // namespace zero::testing::emulated
