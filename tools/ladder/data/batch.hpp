#pragma once

#include <torch/types.h>

#include <cstdint>

#include <zero/nn/cross_entropy.hpp>

namespace zero::data {

using nn::kIgnoredTarget;

/// One micro-batch of one rank. B is the number of samples, S the padded length in tokens.
struct Batch {
  /// int64 [B, S] token ids; for the MLP float [B, features].
  at::Tensor inputs = {};
  /// Language model: int64 [B, S], the next token of each position, kIgnoredTarget if there is
  /// none. Classifier: int64 [B], the label. Regression (MLP): float [B, outputs].
  at::Tensor targets = {};
  /// int64 [B], tokens before padding; undefined if nothing is padded.
  at::Tensor lengths = {};
  /// Loss terms in this batch (targets that are not ignored). Ranks are weighted by it, so that the
  /// gradient is that of the mean over all terms of all ranks.
  std::int64_t loss_terms = 0;
};

/// A number that differs between batches; see dist::digest(). `before`: that of the batches before
/// this one.
std::uint64_t digest(const Batch& batch, std::uint64_t before = 14695981039346656037ULL);

/// The loss of a batch by a model that takes it, or its tensors, as nn::Llama and tools::Mlp do.
template <typename Model>
at::Tensor loss_of(Model& model, const Batch& b) {
  if constexpr (requires { model.loss(b); }) {
    return model.loss(b);
  } else if constexpr (requires { model.loss(b.inputs, b.targets, b.loss_terms, b.lengths); }) {
    return model.loss(b.inputs, b.targets, b.loss_terms, b.lengths);
  } else {
    return model.loss(b.inputs, b.targets, b.loss_terms);
  }
}

}  // namespace zero::data
