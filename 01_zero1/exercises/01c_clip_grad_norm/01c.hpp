#pragma once

#include <torch/types.h>

#include <zero/optim/norm.hpp>
#include <zero/train/strategy.hpp>

namespace exercise_01c {

/// What an answer consists of.
struct Answer {
  /// Called by all ranks after finish_backward() and before optimizer_step() of ZeRO-1. Returns the
  /// L2 norm of the whole averaged gradient of the model, as it is before clipping, the same on
  /// every rank. Where that is more than `max_norm`, multiplies every gradient that this rank owns
  /// by max_norm / (norm + 1e-6).
  float (*clip_grad_norm)(zero::train::Strategy& strategy, double max_norm);
};

}  // namespace exercise_01c
