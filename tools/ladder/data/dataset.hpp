#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <vector>

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

/// Classification of labelled texts, read as bytes and padded with zeros on the right to the
/// longest text of the batch.
///
/// A batch has inputs int64 [B, S] with S the longest length in it (1 if B = 0), targets int64
/// [B], lengths int64 [B], loss_terms = B.
class ReviewDataset : public Dataset {
 public:
  /// @param file lines LABEL,TEXT below a line of heading; a line without a label goes on with the
  /// text before it. Quotes stay as they are.
  /// @param max_length longer texts are cut to this many bytes, at least 1
  /// @throws zero::Error if the file cannot be read.
  ReviewDataset(const std::filesystem::path& file, std::int64_t max_length);

  std::int64_t size() const override { return static_cast<std::int64_t>(reviews_.size()); }
  Batch batch(std::span<const std::int64_t> indices) const override;
  std::string fingerprint() const override;

 private:
  struct Review {
    std::int64_t label;
    std::string text;
  };
  std::vector<Review> reviews_;
};

}  // namespace zero::data
