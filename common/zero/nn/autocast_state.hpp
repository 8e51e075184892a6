#pragma once

#include <ATen/autocast_mode.h>
#include <torch/types.h>

#include <array>

namespace zero::nn {

/// The autocast settings of this thread at construction; restore() sets them again. For all
/// devices.
class AutocastState {
 public:
  AutocastState() {
    for (std::size_t i = 0; i < kDevices.size(); ++i) {
      enabled_[i] = at::autocast::is_autocast_enabled(kDevices[i]);
      dtype_[i] = at::autocast::get_autocast_dtype(kDevices[i]);
    }
    cache_ = at::autocast::is_autocast_cache_enabled();
  }

  /// `with_cache` = false turns LibTorch's cache of cast weights off. Use it if weights may have
  /// changed, because the cache then has old values.
  void restore(bool with_cache = true) const {
    for (std::size_t i = 0; i < kDevices.size(); ++i) {
      at::autocast::set_autocast_enabled(kDevices[i], enabled_[i]);
      at::autocast::set_autocast_dtype(kDevices[i], dtype_[i]);
    }
    at::autocast::set_autocast_cache_enabled(cache_ && with_cache);
  }

 private:
  static constexpr const auto& kDevices = at::autocast::_AUTOCAST_SUPPORTED_DEVICES;

  std::array<bool, kDevices.size()> enabled_{};
  std::array<at::ScalarType, kDevices.size()> dtype_{};
  bool cache_ = true;
};

}  // namespace zero::nn
