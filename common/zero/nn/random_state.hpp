#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <torch/types.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace zero::nn {

/// The state of LibTorch's default generators of the CPU and of some devices. It is no tensor, so
/// that memory accounts do not count it.
class RandomState {
 public:
  /// The current state, for the CPU and for the devices of `tensors`.
  explicit RandomState(const std::vector<at::Tensor>& tensors);

  /// True if nothing was drawn between the two.
  bool operator==(const RandomState& other) const;

  /// Makes the generators repeat what they drew after this state was taken.
  void restore() const;

 private:
  struct OfDevice {
    at::Device device;
    std::uint64_t seed;
    std::uint64_t offset;
    bool operator==(const OfDevice&) const = default;
  };

  at::mt19937_data_pod cpu_;
  std::optional<float> next_float_;  // normal values are drawn in pairs
  std::optional<double> next_double_;
  std::vector<OfDevice> devices_;
};

}  // namespace zero::nn
