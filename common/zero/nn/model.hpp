#pragma once

#include <torch/types.h>

#include <zero/data/batch.hpp>
#include <zero/nn/unit.hpp>

namespace zero::nn {

/// A model that the trainer can train: the root unit, which knows its own loss. A strategy calls
/// nothing else of a model, so that one's own model needs these two functions and no more.
///
/// Both run inside the root's run(), with the root's hooks around them, so that the root's
/// parameters are whole while they are used and the loss is the root's output.
class Model : public Unit {
 public:
  /// Forward on one micro-batch. Gives the loss, a scalar that requires a gradient: the mean over
  /// the batch's loss terms (data::Batch::loss_terms), 0 where there are none.
  virtual at::Tensor loss(const data::Batch& batch) = 0;

  /// Forward without a loss: what the model says about each input. Targets are not looked at and
  /// may be undefined. Call it under at::NoGradGuard unless a gradient is wanted.
  virtual at::Tensor predict(const data::Batch& batch) = 0;
};

}  // namespace zero::nn
