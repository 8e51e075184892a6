#pragma once

#include <torch/types.h>

#include <vector>

#include <zero/distributed/communicator.hpp>

namespace exercise_00d {

/// Some samples, each a loss term.
struct MicroBatch {
  at::Tensor inputs;   ///< [samples, inputs]
  at::Tensor targets;  ///< [samples]
  std::int64_t samples() const { return inputs.size(0); }
};

/// Gradient of the MEAN of the squared errors of inputs * weight over the samples of `batch`; the
/// shape of `weight`. Sends nothing.
inline at::Tensor gradient_of_mean(const at::Tensor& weight, const MicroBatch& batch) {
  const at::Tensor error = batch.inputs.mv(weight) - batch.targets;
  return batch.inputs.t().mv(error) * (2.0 / static_cast<double>(batch.samples()));
}

/// What an answer consists of.
struct Answer {
  /// Returns, on every rank, the gradient of the mean over all samples of all micro-batches of all
  /// ranks. Called by all ranks. Ranks may have different numbers of micro-batches, also none.
  at::Tensor (*accumulated_gradient)(zero::dist::Communicator& communicator,
                                     const at::Tensor& weight,
                                     const std::vector<MicroBatch>& batches);
};

}  // namespace exercise_00d
