#pragma once

#include <zero/optim/adamw.hpp>
#include <zero/optim/master_weights.hpp>

#include "session.hpp"

namespace zero::testing {

/// A model with odd sizes, a tied, a frozen and a scalar parameter, a unit used twice, and
/// parameters smaller than the world size, under AdamW with master weights; with a loss scale in
/// float16.
inline SessionOptions mixed(at::ScalarType dtype,
                            dist::ReduceType reduce = dist::ReduceType::kOwn) {
  SessionOptions options = with_parts("anfsgt");
  options.model.dtype = dtype;
  options.optimizer = optim::with_master_weights(optim::adamw({.learning_rate = 0.02}));
  options.reduce_type = reduce;
  if (dtype == at::kHalf) options.trainer.loss_scale = train::LossScaleOptions{.initial = 1024};
  return options;
}

}  // namespace zero::testing
