#pragma once

#include <cstddef>

#include <zero/train/strategy.hpp>

namespace zero::train {

/// While it lives, the parameters of one unit are whole for reading and writing:
/// Strategy::unshard() and, at the end, Strategy::reshard(). All ranks make one together; blocks.
///
/// What is written into them stays: at the end each rank keeps its shard of the written values. All
/// ranks must write the same values, as they do if each does the same to the whole parameter; the
/// next step (train::Step) compares what was written, in place or through data(), and
/// throws zero::Error on all ranks if it differs. Moments stay as they are; a float32 master weight
/// becomes the written value. What is written outside of such a scope is refused there, if the
/// version counter of the parameter shows it.
///
/// Without it, reading a parameter outside of its unit is an error that names the parameter, if the
/// stage does not keep it whole: zero::Error inside forward() or backward(), else c10::Error.
/// Values read here may have a gradient, such as that of a penalty on weights, if they do on all
/// ranks: each backward() until the weights change then keeps the unit whole throughout.
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
