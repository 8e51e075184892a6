#pragma once

#include <algorithm>
#include <cstdint>

/// Bytes of what is only at times in the memory that computes (10_offload/host.md). Tests compare
/// them with what runs count.
namespace zero::plan {

/// Where the inputs of checkpointed layers are if they leave the device (keep_on_host()), in bytes.
struct InputsOnHost {
  std::int64_t device = 0, host = 0;
  std::int64_t bus = 0;  ///< both ways, in a micro-batch
};
/// Of `layers` layers, `input` bytes each: all go out, and all but the last come back.
constexpr InputsOnHost inputs_on_host(std::int64_t layers, std::int64_t input) {
  return {std::min<std::int64_t>(layers, 2) * input, layers * input, (2 * layers - 1) * input};
}

}  // namespace zero::plan
