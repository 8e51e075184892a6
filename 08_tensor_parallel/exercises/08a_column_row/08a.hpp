#pragma once

#include <torch/types.h>

#include <zero/distributed/communicator.hpp>

namespace exercise_08a {

/// Two linear layers with relu between them, float32. A weight has a row for each input, and below
/// them the bias: the last row is multiplied by an input that is always 1.
struct Pair {
  at::Tensor first;   ///< [h + 1, f]
  at::Tensor second;  ///< [f + 1, o]
};

/// What backward makes.
struct Gradients {
  at::Tensor x;  ///< of the whole input, the same on every rank: [tokens, h]
  Pair weights;  ///< of what this rank holds
};

/// `x` with `ones` (0 or 1) more inputs, which are always 1.
inline at::Tensor with_ones(const at::Tensor& x, int ones) {
  return at::cat({x, at::ones({x.size(0), ones})}, 1);
}

/// What an answer consists of. `axis` are the tensor ranks. They call the same function with the
/// same x and delta, and the part that part_of() gave to this rank.
struct Answer {
  /// Returns what tensor rank `rank` of `ranks` holds, in memory of its own: the columns of `first`
  /// that make its features, and the rows of `second` that read them. The last rank has the bias of
  /// `second`. f divides by `ranks`.
  Pair (*part_of)(const Pair& whole, int rank, int ranks);

  /// Returns the pair's output for x [tokens, h], the whole of it: [tokens, o]. `inner` becomes
  /// what relu makes on this rank: [tokens, f / ranks].
  at::Tensor (*forward)(const Pair& part, const at::Tensor& x, at::Tensor& inner,
                        zero::dist::Communicator& axis);

  /// Returns the gradients, given `delta`, that of the output, [tokens, o].
  Gradients (*backward)(const Pair& part, const at::Tensor& x, const at::Tensor& inner,
                        const at::Tensor& delta, zero::dist::Communicator& axis);
};

}  // namespace exercise_08a
