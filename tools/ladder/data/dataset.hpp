#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "batch.hpp"
#include "token_stream.hpp"

namespace zero::data {

/// Numbered samples that can be made into a Batch. The same on every rank; the sampler decides
/// which samples a rank takes. All tensors are made on the CPU.
class Dataset {
 public:
  virtual ~Dataset() = default;

  /// Number of samples.
  virtual std::int64_t size() const = 0;

  /// The samples `indices`, in that order; repetitions are allowed. With no indices the tensors
  /// have B = 0 and loss_terms is 0.
  /// @throws zero::Error for an index outside 0 to size() - 1.
  virtual Batch batch(std::span<const std::int64_t> indices) const = 0;

  /// 64 hexadecimal digits that identify the samples, for ranks to compare at start-up: data sets
  /// with the same digits give the same batches. Reads all data once.
  virtual std::string fingerprint() const = 0;

 protected:
  void check(std::span<const std::int64_t> indices) const;
};

/// Language modelling: the stream cut into sequences of S tokens that do not overlap.
///
/// Sample i has the inputs [i S, i S + S) and, as targets, the tokens one position later: every
/// position has a target, and sequences are packed without padding. The last target of the last
/// sample needs a further token: size() = (tokens - 1) / S, rounded down, and tokens left over at
/// the end are not used.
///
/// A batch has inputs and targets int64 [B, S], no lengths, loss_terms = B S.
class LanguageModelDataset : public Dataset {
 public:
  /// @throws zero::Error for S below 1 or a stream of fewer than S + 1 tokens.
  LanguageModelDataset(TokenStream stream, std::int64_t sequence_length);

  std::int64_t size() const override;
  Batch batch(std::span<const std::int64_t> indices) const override;
  std::string fingerprint() const override;

 private:
  TokenStream stream_;
  std::int64_t sequence_length_;
};

/// Classes of a review: 0 (one star) to 4 (five stars).
inline constexpr std::int64_t kReviewClasses = 5;

/// Classification of labelled texts, padded on the right to the longest text of the batch.
///
/// A batch has inputs int64 [B, S] with S the longest length in it (1 if B = 0), targets int64
/// [B], lengths int64 [B], loss_terms = B. Padding holds the records' pad id.
class ReviewDataset : public Dataset {
 public:
  /// @param records labelled texts
  /// @param max_length longer texts are cut to this many tokens; 0 keeps them whole
  /// @throws zero::Error for a negative max_length.
  explicit ReviewDataset(Records records, std::int64_t max_length = 0);

  std::int64_t size() const override { return records_.size(); }
  Batch batch(std::span<const std::int64_t> indices) const override;
  std::string fingerprint() const override;

 private:
  std::int64_t length(std::int64_t index) const;

  Records records_;
  std::int64_t max_length_;
};

/// Rows of numbers and the numbers to predict from them, for the MLP.
///
/// A batch has inputs float [B, features], targets float [B, outputs], no lengths, loss_terms =
/// B outputs.
class RegressionDataset : public Dataset {
 public:
  /// Shares `inputs` [n, features] and `targets` [n, outputs], both float.
  /// @throws zero::Error for other shapes or dtypes, or no rows.
  RegressionDataset(at::Tensor inputs, at::Tensor targets);

  std::int64_t size() const override { return inputs_.size(0); }
  Batch batch(std::span<const std::int64_t> indices) const override;
  std::string fingerprint() const override;

 private:
  at::Tensor inputs_;
  at::Tensor targets_;
};

/// A synthetic regression problem, the same numbers on every machine.
///
/// Inputs are drawn from 256 equally spaced values from -1 to 127/128. Output o of a row x is sum
/// over f of (w[o, f] x[f] + v[o, f] |x[f]|) / sqrt(features), with w and v drawn in the same way:
/// about 0.5 in size, and not learnable by a linear model. All products and sums are exact in
/// double, so neither the order of summation nor fused multiply-adds can change them.
/// @throws zero::Error if a count is below 1.
RegressionDataset toy_regression(std::uint64_t seed, std::int64_t n, std::int64_t features,
                                 std::int64_t outputs);

}  // namespace zero::data
