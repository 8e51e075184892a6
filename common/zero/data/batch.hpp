#pragma once

#include <torch/types.h>

#include <cstdint>

namespace zero::data {

/// Target value that is left out of the loss (like `ignore_index` in PyTorch's cross-entropy).
inline constexpr std::int64_t kIgnoredTarget = -100;

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

/// A number that differs between batches: FNV-1a of their elements and sizes, those of a GPU left
/// out, because the host would wait for them. `before`: that of the batches before this one.
std::uint64_t digest(const Batch& batch, std::uint64_t before = 14695981039346656037ULL);

}  // namespace zero::data
