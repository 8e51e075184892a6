#include "samples.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <numeric>

#include <tools/ladder/data/random.hpp>
#include <tools/ladder/data/sampler.hpp>
#include <tools/ladder/data/text.hpp>
#include <tools/ladder/data/token_file.hpp>
#include <zero/base/error.hpp>
#include <zero/base/mapped_file.hpp>

namespace zero::ladder {
namespace {

namespace fs = std::filesystem;

bool is_token_file(const std::string& name) {
  std::error_code ignored;
  return fs::is_regular_file(name, ignored) && data::is_token_file(name);
}

data::TokenStream read_text(const Options& options) {
  if (options.data.empty()) return data::project_text(".");
  for (const std::string& name : options.data) {
    if (!is_token_file(name)) continue;
    if (options.data.size() > 1) {
      throw Error(fmt::format("--data: {} is a token file, which is taken alone", name));
    }
    return data::TokenFile(name).stream();
  }
  return data::text_from_files(options.data);
}

data::Records read_reviews(const Options& options) {
  if (options.data.empty()) {
    return data::TokenFile("tools/ladder/data/fixtures/reviews.tokens").records();
  }
  if (options.data.size() > 1) {
    throw Error(
        fmt::format("--data: reviews come from one file, {} were named", options.data.size()));
  }
  data::Records records = data::TokenFile(options.data.front()).records();
  if (records.classes > data::kReviewClasses) {
    throw Error(fmt::format("--data: {} has {} classes, the classifier {}", options.data.front(),
                            records.classes, data::kReviewClasses));
  }
  return records;
}

// Ids mean nothing to a model that was trained with another tokenizer.
void check_tokenizer(const data::TokenStream& tokens, const Options& options) {
  const fs::path path = fs::path(options.weights) / "tokenizer.json";
  std::error_code ignored;
  if (options.weights.empty() || !fs::is_regular_file(path, ignored)) return;
  const std::string wanted = base::to_hex(base::MappedFile(path, path.string()).sha256());
  if (wanted == tokens.tokenizer_fingerprint()) return;
  throw Error(
      fmt::format("the tokens of the data were made by the tokenizer {:.12}…, the model's is {} "
                  "({:.12}…): make the token file with that one (./run data --help)",
                  tokens.tokenizer_fingerprint(), path.string(), wanted));
}

void check_vocabulary(const data::TokenStream& tokens, const Options& options,
                      std::vector<std::string>& notes) {
  const std::int64_t model = options.config().vocabulary;
  if (tokens.vocabulary() > model) {
    throw Error(fmt::format(
        "the data has a vocabulary of {} tokens, the model {} one of {}: take a model or a token "
        "file whose vocabularies are the same",
        tokens.vocabulary(), options.model_name(), model));
  }
  const bool are_bytes = tokens.tokenizer_fingerprint() == data::kByteTokenizer;
  if (!are_bytes) check_tokenizer(tokens, options);
  if (!are_bytes && tokens.vocabulary() < model) {
    notes.push_back(fmt::format("the data's vocabulary is {}, the model's {}: {} tokens never come",
                                tokens.vocabulary(), model, model - tokens.vocabulary()));
  }
  if (are_bytes && !options.weights.empty() && model != data::kByteVocabulary) {
    notes.push_back(
        "the text is read as bytes, which mean nothing to these weights: a token file of their own "
        "tokenizer comes from ./run data");
  }
}

// Holds out the last windows of a text, or reviews drawn by seed: files of reviews may be sorted.
void split(Samples& samples, const Options& options) {
  const std::int64_t size = samples.dataset->size();
  const auto held_out = static_cast<std::int64_t>(options.validation * static_cast<double>(size));
  const int ranks = options.data_ranks();
  if (options.validation > 0 && (held_out < ranks || size - held_out < options.step_samples())) {
    throw Error(
        fmt::format("--validation {} holds out {} of {} samples: it must hold out {} or more "
                    "and leave the {} of a step",
                    options.validation, held_out, size, ranks, options.step_samples()));
  }
  samples.training.resize(static_cast<std::size_t>(size));
  std::iota(samples.training.begin(), samples.training.end(), 0);
  if (held_out == 0) return;
  if (options.reviews()) {
    // Epochs have the streams from 0.
    samples.training =
        data::permutation(size, data::generator_for(options.seed, ~std::uint64_t{0}));
  }
  samples.validation.assign(samples.training.end() - held_out, samples.training.end());
  samples.training.resize(static_cast<std::size_t>(size - held_out));
  samples.notes.push_back(
      fmt::format("{} of {} samples are held out for validation", held_out, size));
}

}  // namespace

Samples read_samples(const Options& options) {
  Samples samples;
  if (options.reviews()) {
    data::Records records = read_reviews(options);
    check_vocabulary(records.tokens, options, samples.notes);
    samples.pad_id = records.pad_id;
    samples.dataset =
        std::make_unique<data::ReviewDataset>(std::move(records), options.sequence_length);
  } else {
    data::TokenStream stream = read_text(options);
    check_vocabulary(stream, options, samples.notes);
    samples.dataset =
        std::make_unique<data::LanguageModelDataset>(std::move(stream), options.sequence_length);
  }
  split(samples, options);
  // Refuses data that is too little for one step.
  samples.steps_per_epoch =
      data::DistributedSampler(std::ssize(samples.training), options.step_samples(),
                               /*rank=*/0, options.data_ranks(), options.seed)
          .steps_per_epoch();
  return samples;
}

}  // namespace zero::ladder
