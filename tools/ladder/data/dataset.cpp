#include "dataset.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>

#include <zero/base/error.hpp>
#include <zero/base/mapped_file.hpp>
#include <zero/base/sha256.hpp>

namespace zero::data {
namespace {

/// Row `row` of a contiguous int64 matrix, for writing.
std::span<std::int64_t> row_of(at::Tensor& matrix, std::int64_t row) {
  const std::int64_t width = matrix.size(1);
  return {matrix.mutable_data_ptr<std::int64_t>() + row * width, static_cast<std::size_t>(width)};
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
  return base::Sha256()
      .add(fmt::format("language model {} {}", sequence_length_, stream_.fingerprint()))
      .hex();
}

ReviewDataset::ReviewDataset(const std::filesystem::path& file, std::int64_t max_length) {
  std::istringstream lines(base::read_file(file, fmt::format("file {}", file.string())));
  std::string line;
  std::getline(lines, line);
  while (std::getline(lines, line)) {
    const bool begins = line.size() > 1 && line[0] >= '0' && line[0] <= '4' && line[1] == ',';
    if (begins) {
      reviews_.push_back({line[0] - '0', line.substr(2)});
    } else if (!reviews_.empty()) {
      reviews_.back().text += "\n" + line;
    }
  }
  for (Review& review : reviews_)
    review.text.resize(std::min(review.text.size(), static_cast<std::size_t>(max_length)));
}

Batch ReviewDataset::batch(std::span<const std::int64_t> indices) const {
  check(indices);
  std::vector<std::int64_t> lengths, labels;
  for (const std::int64_t index : indices) {
    const Review& review = reviews_[static_cast<std::size_t>(index)];
    lengths.push_back(std::ssize(review.text));
    labels.push_back(review.label);
  }
  const std::int64_t longest = lengths.empty() ? 1 : std::ranges::max(lengths);
  const auto rows = static_cast<std::int64_t>(indices.size());
  Batch made;
  made.inputs = at::zeros({rows, longest}, at::kLong);
  made.targets = at::tensor(labels, at::kLong);
  made.lengths = at::tensor(lengths, at::kLong);
  made.loss_terms = rows;
  for (std::int64_t row = 0; row < rows; ++row) {
    const auto index = static_cast<std::size_t>(indices[static_cast<std::size_t>(row)]);
    const auto bytes = std::as_bytes(std::span(reviews_[index].text));
    std::ranges::transform(bytes, row_of(made.inputs, row).begin(),
                           [](std::byte byte) { return std::to_integer<std::int64_t>(byte); });
  }
  return made;
}

std::string ReviewDataset::fingerprint() const {
  base::Sha256 hash;
  for (const auto& [label, text] : reviews_)
    hash.add(fmt::format("{} {} {}\n", label, text.size(), text));
  return hash.hex();
}

}  // namespace zero::data
