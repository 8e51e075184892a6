#include "dataset.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include <zero/base/error.hpp>
#include <zero/base/sha256.hpp>

#include "random.hpp"

namespace zero::data {
namespace {

/// Row `row` of a contiguous int64 matrix, for writing.
std::span<std::int64_t> row_of(at::Tensor& matrix, std::int64_t row) {
  const std::int64_t width = matrix.size(1);
  return {matrix.mutable_data_ptr<std::int64_t>() + row * width, static_cast<std::size_t>(width)};
}

std::string fingerprint_of(const char* kind, std::int64_t length, const std::string& tokens) {
  return base::Sha256().add(fmt::format("{} {} {}", kind, length, tokens)).hex();
}

/// One of 256 equally spaced values from -1 to 127/128: 8 bits, so that products are exact.
double draw_coarse(SplitMix64& generator) {
  return static_cast<double>(generator.below(256)) / 128.0 - 1.0;
}

}  // namespace

void Dataset::check(std::span<const std::int64_t> indices) const {
  for (const std::int64_t index : indices) {
    if (index < 0 || index >= size()) {
      throw Error(fmt::format("sample {} asked for, the data set has 0 to {}", index, size() - 1));
    }
  }
}

LanguageModelDataset::LanguageModelDataset(TokenStream stream, std::int64_t sequence_length)
    : stream_(std::move(stream)), sequence_length_(sequence_length) {
  if (sequence_length < 1) {
    throw Error(fmt::format("sequences of {} tokens; 1 is the least", sequence_length));
  }
  if (size() < 1) {
    throw Error(
        fmt::format("the text has {} tokens; one sequence of {} takes {}, as the last "
                    "token needs a next one",
                    stream_.size(), sequence_length, sequence_length + 1));
  }
}

std::int64_t LanguageModelDataset::size() const {
  return std::max<std::int64_t>(stream_.size() - 1, 0) / sequence_length_;
}

Batch LanguageModelDataset::batch(std::span<const std::int64_t> indices) const {
  check(indices);
  const auto rows = static_cast<std::int64_t>(indices.size());
  Batch made;
  made.inputs = at::empty({rows, sequence_length_}, at::kLong);
  made.targets = at::empty({rows, sequence_length_}, at::kLong);
  made.loss_terms = rows * sequence_length_;
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t begin = indices[static_cast<std::size_t>(row)] * sequence_length_;
    stream_.copy(begin, row_of(made.inputs, row));
    stream_.copy(begin + 1, row_of(made.targets, row));
  }
  return made;
}

std::string LanguageModelDataset::fingerprint() const {
  return fingerprint_of("language model", sequence_length_, stream_.fingerprint());
}

ReviewDataset::ReviewDataset(Records records, std::int64_t max_length)
    : records_(std::move(records)), max_length_(max_length) {
  if (max_length < 0) {
    throw Error(fmt::format("texts of at most {} tokens; 0 keeps them whole", max_length));
  }
}

std::int64_t ReviewDataset::length(std::int64_t index) const {
  const std::int64_t whole = records_.length(index);
  return max_length_ > 0 ? std::min(whole, max_length_) : whole;
}

Batch ReviewDataset::batch(std::span<const std::int64_t> indices) const {
  check(indices);
  std::vector<std::int64_t> lengths;
  std::vector<std::int64_t> labels;
  for (const std::int64_t index : indices) {
    lengths.push_back(length(index));
    labels.push_back(records_.labels[static_cast<std::size_t>(index)]);
  }
  const std::int64_t longest = lengths.empty() ? 1 : std::ranges::max(lengths);
  const auto rows = static_cast<std::int64_t>(indices.size());
  Batch made;
  made.inputs = at::full({rows, longest}, records_.pad_id, at::kLong);
  made.targets = at::tensor(labels, at::kLong);
  made.lengths = at::tensor(lengths, at::kLong);
  made.loss_terms = rows;
  for (std::size_t row = 0; row < indices.size(); ++row) {
    const auto begin = records_.offsets[static_cast<std::size_t>(indices[row])];
    const auto out = row_of(made.inputs, static_cast<std::int64_t>(row));
    records_.tokens.copy(begin, out.first(static_cast<std::size_t>(lengths[row])));
  }
  return made;
}

std::string ReviewDataset::fingerprint() const {
  return fingerprint_of("reviews", max_length_, records_.fingerprint());
}

RegressionDataset::RegressionDataset(at::Tensor inputs, at::Tensor targets)
    : inputs_(std::move(inputs)), targets_(std::move(targets)) {
  if (inputs_.dim() != 2 || targets_.dim() != 2 || inputs_.size(0) != targets_.size(0) ||
      inputs_.size(0) < 1) {
    throw Error("inputs [n, features] and targets [n, outputs] with n of at least 1 are needed");
  }
  if (inputs_.scalar_type() != at::kFloat || targets_.scalar_type() != at::kFloat) {
    throw Error("inputs and targets of a regression are float32");
  }
  inputs_ = inputs_.contiguous();
  targets_ = targets_.contiguous();
}

Batch RegressionDataset::batch(std::span<const std::int64_t> indices) const {
  check(indices);
  const at::Tensor rows = at::tensor(at::IntArrayRef(indices.data(), indices.size()), at::kLong);
  Batch made;
  made.inputs = inputs_.index_select(/*dim=*/0, rows);
  made.targets = targets_.index_select(/*dim=*/0, rows);
  made.loss_terms = made.targets.numel();
  return made;
}

std::string RegressionDataset::fingerprint() const {
  base::Sha256 hash;
  hash.add(fmt::format("regression {} {} {}", size(), inputs_.size(1), targets_.size(1)));
  hash.add(inputs_.const_data_ptr<float>(), inputs_.nbytes());
  hash.add(targets_.const_data_ptr<float>(), targets_.nbytes());
  return hash.hex();
}

RegressionDataset toy_regression(std::uint64_t seed, std::int64_t n, std::int64_t features,
                                 std::int64_t outputs) {
  if (n < 1 || features < 1 || outputs < 1) {
    throw Error(
        fmt::format("a regression of {} rows, {} features and {} outputs; each is at least 1", n,
                    features, outputs));
  }
  SplitMix64 generator = generator_for(seed, /*stream=*/0);
  const auto draw = [&](std::int64_t count) {
    std::vector<double> drawn(static_cast<std::size_t>(count));
    std::ranges::generate(drawn, [&] { return draw_coarse(generator); });
    return drawn;
  };
  const std::vector<double> slope = draw(outputs * features);
  const std::vector<double> bend = draw(outputs * features);
  at::Tensor inputs = at::empty({n, features}, at::kFloat);
  at::Tensor targets = at::empty({n, outputs}, at::kFloat);
  auto* input = inputs.mutable_data_ptr<float>();
  auto* target = targets.mutable_data_ptr<float>();
  const double scale = 1.0 / std::sqrt(static_cast<double>(features));
  for (std::int64_t row = 0; row < n; ++row) {
    const std::vector<double> x = draw(features);
    input = std::ranges::copy(x, input).out;
    for (std::int64_t output = 0; output < outputs; ++output) {
      double sum = 0;
      for (std::int64_t f = 0; f < features; ++f) {
        const auto weight = static_cast<std::size_t>(output * features + f);
        const double value = x[static_cast<std::size_t>(f)];
        sum += slope[weight] * value + bend[weight] * std::abs(value);
      }
      *target++ = static_cast<float>(sum * scale);
    }
  }
  return {std::move(inputs), std::move(targets)};
}

}  // namespace zero::data
