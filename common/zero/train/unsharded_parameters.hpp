#pragma once

#include <cstddef>

#include <zero/train/strategy.hpp>

namespace zero::train {

/// While it lives, the parameters of one unit are whole for reading: Strategy::unshard() and, at
/// the end, Strategy::reshard(). All ranks make one together; blocks.
///
/// Without it, reading a parameter outside of its unit is an error that names the parameter, if the
/// stage does not keep it whole: zero::Error inside forward() or backward(), else c10::Error.
/// Values read here may have a gradient, such as that of a penalty on weights, if they do on all
/// ranks: the next backward() then keeps the unit whole throughout.
class UnshardedParameters {
 public:
  UnshardedParameters(Strategy& strategy, std::size_t unit) : strategy_(strategy), unit_(unit) {
    strategy_.unshard(unit_);
  }
  ~UnshardedParameters() { strategy_.reshard(unit_); }
  UnshardedParameters(const UnshardedParameters&) = delete;
  UnshardedParameters& operator=(const UnshardedParameters&) = delete;

 private:
  Strategy& strategy_;
  std::size_t unit_;
};

}  // namespace zero::train
