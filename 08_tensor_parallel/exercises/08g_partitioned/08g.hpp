#pragma once

#include <torch/types.h>

#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include <zero/distributed/communicator.hpp>

namespace exercise_08g {

/// Layers on tensor ranks: their inputs and outputs are the same on every rank. Both functions send
/// sums over the axis, so all ranks call them in the same order.
struct Layers {
  int count = 0;
  /// Returns the output of layer `layer`. Keeps nothing.
  std::function<at::Tensor(int layer, const at::Tensor& input)> forward;
  /// Runs forward of the layer again from `input`, then backward. Returns the gradient of the
  /// input, given `delta`, that of the output.
  std::function<at::Tensor(int layer, const at::Tensor& input, const at::Tensor& delta)> backward;
};

/// What forward returns.
struct Forward {
  at::Tensor output;             ///< of the last layer
  std::vector<at::Tensor> kept;  ///< a checkpoint for each layer: this rank's part of its input
};

/// What an answer consists of. `axis` are the tensor ranks, which call the same function with the
/// same values. All inputs have the same sizes, float32, contiguous.
struct Answer {
  /// Runs the layers, the first one with `x`. Throws std::invalid_argument, which names the number
  /// of elements of x and the number of ranks, if the ranks cannot share them evenly.
  Forward (*forward)(const Layers& layers, at::Tensor x, zero::dist::Communicator& axis);

  /// Runs the layers backward, the last one with `delta`. `kept` is what forward returned, and
  /// `sizes` are those of an input. Returns the gradient of x.
  at::Tensor (*backward)(const Layers& layers, std::vector<at::Tensor> kept, at::Tensor delta,
                         at::IntArrayRef sizes, zero::dist::Communicator& axis);
};

}  // namespace exercise_08g
