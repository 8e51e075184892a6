#pragma once

#include <torch/types.h>

#include <zero/distributed/communicator.hpp>

namespace exercise_08f {

/// What a tensor rank has of half a layer with h features and f in between, float32. `scale` stands
/// for a norm layer, whose weight every rank holds.
struct Half {
  at::Tensor scale;   ///< [h], the same on every rank
  at::Tensor first;   ///< [h, f / n], cut by columns
  at::Tensor second;  ///< [f / n, h], cut by rows
};

/// What forward keeps for backward.
struct Kept {
  at::Tensor entered;  ///< what `first` reads, of all positions: [tokens, h]
  at::Tensor inner;    ///< this rank's features, of all positions: [tokens, f / n]
};

/// What backward makes.
struct Gradients {
  at::Tensor x;              ///< of this rank's positions, [tokens / n, h]
  at::Tensor scale;          ///< the same on every rank, of all positions
  at::Tensor first, second;  ///< of what this rank holds, of all positions
};

/// What an answer consists of. `axis` are the n tensor ranks, which call the same function. `x` is
/// the residual stream of this rank's positions, [tokens / n, h]; rank 0 has the first ones.
struct Answer {
  /// Returns x + second(relu(first(scale * x))) of this rank's positions, [tokens / n, h].
  at::Tensor (*forward)(const Half& half, const at::Tensor& x, Kept& kept,
                        zero::dist::Communicator& axis);

  /// Returns the gradients, given `delta`, that of the output of this rank's positions.
  Gradients (*backward)(const Half& half, const at::Tensor& x, const Kept& kept,
                        const at::Tensor& delta, zero::dist::Communicator& axis);
};

}  // namespace exercise_08f
