#include "samples.hpp"

#include <fmt/format.h>

#include <filesystem>

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
    return data::read_token_file(name);
  }
  return data::text_from_files(options.data);
}

// Ids mean nothing to a model that was trained with another tokenizer.
void check_tokenizer(const data::TokenStream& tokens, const Options& options) {
  const fs::path path = fs::path(options.weights) / "tokenizer.json";
  std::error_code ignored;
  if (options.weights.empty() || !fs::is_regular_file(path, ignored)) return;
  const std::string wanted = base::MappedFile(path, path.string()).sha256();
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

}  // namespace

Samples read_samples(const Options& options) {
  Samples samples;
  if (options.reviews()) {
    check_vocabulary(data::TokenStream(), options, samples.notes);
    samples.dataset = std::make_unique<data::ReviewDataset>(
        "tools/ladder/data/fixtures/reviews.csv", options.sequence_length);
  } else {
    data::TokenStream stream = read_text(options);
    check_vocabulary(stream, options, samples.notes);
    samples.dataset =
        std::make_unique<data::LanguageModelDataset>(std::move(stream), options.sequence_length);
  }
  // Refuses data that is too little for one step.
  data::DistributedSampler(samples.dataset->size(), options.step_samples(), /*rank=*/0,
                           options.data_ranks(), options.seed);
  return samples;
}

}  // namespace zero::ladder
