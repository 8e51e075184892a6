#pragma once

#include <torch/types.h>

namespace exercise_10c {

/// The host of a rank. It holds the master weights and the moments of the rank's shard, and updates
/// them in the background.
class Host {
 public:
  virtual ~Host() = default;
  /// Starts an update. It reads `gradient` at any time until wait() returns.
  virtual void start_update(const at::Tensor& gradient) = 0;
  /// Blocks until the update has ended.
  virtual void wait() = 0;
  /// A copy of the master weights, as the last update that has ended left them.
  virtual at::Tensor weights() const = 0;
};

/// The device of a rank.
class Device {
 public:
  virtual ~Device() = default;
  at::Tensor weights;   ///< this rank's shard, which all ranks gather to compute
  at::Tensor gradient;  ///< of this shard, averaged over the ranks
  /// Forward, backward and reduction of a step, with `weights`. Overwrites the numbers in
  /// `gradient`. Takes time, in which the host can work. All ranks call it.
  virtual void compute() = 0;
};

struct Rank {
  Device& device;
  Host& host;
  at::Tensor kept = {};  ///< a gradient that the host has not used yet; undefined if there is none
};

/// What an answer consists of.
struct Answer {
  /// A step. `delayed`: the host updates with the gradient of the step before while the device
  /// computes that of this one. No step after a delayed one is not, unless finish() was called.
  void (*train_step)(Rank& rank, bool delayed);
  /// After the last delayed step: updates with the gradient that is left, if there is one.
  void (*finish)(Rank& rank);
};

}  // namespace exercise_10c
