#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <torch/types.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace zero::nn {

/// What LibTorch's default generators of the CPU and of some devices will draw next. No tensor, so
/// that it is in nobody's accounts.
class RandomState {
 public:
  /// As it is now, of the CPU and of the devices on which `tensors` lie.
  explicit RandomState(const std::vector<at::Tensor>& tensors);

  /// Whether nothing has been drawn between the two.
  bool operator==(const RandomState& other) const;

  /// Makes the generators draw again what they drew then.
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
