// The ladder program on a tiny model: weights in and out, kinds of data, traces.
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>
#include <zero/data/reviews.hpp>
#include <zero/data/sha256.hpp>
#include <zero/data/tokens.hpp>
#include <zero/nn/llama.hpp>
#include <zero/nn/parameters.hpp>
#include <zero/nn/safetensors.hpp>

#include "test_program.hpp"

namespace zero::ladder {
namespace {

using nlohmann::json;
using testing::contents_of;
using testing::Ended;
using ::testing::HasSubstr;
using testing::kQuick;
using testing::listing;
using ::testing::Not;
using testing::run_ladder;
using testing::TestFolder;
using testing::written;

json report_of(const TestFolder& folder) { return json::parse(contents_of(folder / "out.json")); }

std::string digest_of(const json& report, const std::string& mode) {
  for (const json& row : report.at("modes")) {
    if (row.at("mode") == mode) return row.at("ranks").at(0).at("digest");
  }
  return "no mode " + mode;
}

void expect_identical(const json& report, std::size_t modes) {
  EXPECT_EQ(report.at("modes").size(), modes);
  for (const json& row : report.at("modes")) EXPECT_EQ(row.at("identical_to_ddp"), true) << row;
}

nn::ParameterList tiny_parameters(std::int64_t classes) {
  nn::LlamaConfig config = nn::preset("tiny");
  config.classes = classes;
  const nn::DeferredStorage deferred;
  return nn::list_parameters(*std::make_shared<nn::Llama>(config));
}

// What the ladder reports as the digest of a model with the tensors of this folder.
std::string digest_of_folder(const std::filesystem::path& path, std::int64_t classes) {
  const nn::SafetensorsFolder folder(path);
  data::Sha256 all;
  for (const nn::Parameter& p : tiny_parameters(classes).parameters) {
    const at::Tensor tensor = folder.read(p.name);
    all.add(data::Sha256().add(tensor.const_data_ptr(), tensor.nbytes()).hex());
  }
  return all.hex();
}

// A folder of weights for the tiny language model, with one tensor less or more.
std::string tiny_weights(const TestFolder& folder, const std::string& without,
                         const std::string& with) {
  nn::NamedTensors tensors;
  for (const nn::Parameter& p : tiny_parameters(/*classes=*/0).parameters) {
    if (p.name != without) tensors.emplace_back(p.name, at::ones(p.tensor.sizes()));
  }
  if (!with.empty()) tensors.emplace_back(with, at::ones({2}));
  nn::save_safetensors_folder(folder / "weights", tensors);
  written(folder, "weights/config.json", nn::to_hugging_face_json(nn::preset("tiny")).dump());
  return (folder / "weights").string();
}

TEST(Reviews, EveryModeTrainsTheClassifierToTheSameWeights) {
  const TestFolder folder;
  const Ended ended = run_ladder(folder, kQuick + "--task reviews");
  ASSERT_EQ(ended.code, 0) << ended.said;
  EXPECT_THAT(ended.said, HasSubstr("tiny as 5-class classifier on 2 ranks"));
  const json report = report_of(folder);
  expect_identical(report, 4);
  EXPECT_EQ(report.at("parameters"), tiny_parameters(data::kReviewClasses).numel());
  EXPECT_EQ(report.at("task"), "reviews");
  // At the published size a column is to be right within 0.01 MiB; nothing else may be resident.
  for (const json& row : report.at("modes")) EXPECT_LT(row.at("other_mib_max"), 0.005) << row;
}

TEST(Reviews, CsvJsonLinesAndTokenFileOfTheSameReviewsAreTheSame) {
  const TestFolder folder;
  std::string csv = "label,text\n";
  std::string lines;
  std::vector<data::Record> records;
  for (int i = 0; i < 12; ++i) {
    const std::string text = "review number " + std::to_string(i * i);
    csv += std::to_string(i % 5) + "," + text + "\n";
    lines += json{{"stars", i % 5 + 1}, {"text", text}}.dump() + "\n";
    records.push_back({i % 5, {text.begin(), text.end()}});
  }
  data::write_token_file(folder / "c", data::Records::from(records, /*classes=*/5, 256));
  std::set<std::string> digests;
  for (const std::string& path :
       {written(folder, "a", csv), written(folder, "b", lines), (folder / "c").string()}) {
    const Ended ended =
        run_ladder(folder, kQuick + "--modes ddp --task reviews --data '" + path + "'");
    ASSERT_EQ(ended.code, 0) << path << ended.said;
    digests.insert(digest_of(report_of(folder), "ddp"));
  }
  EXPECT_EQ(digests.size(), 1U);
}

TEST(Text, TokenFileIsTrainedOnAndASmallerVocabularyIsMentioned) {
  const TestFolder folder;
  std::vector<std::int64_t> ids;
  for (std::int64_t i = 0; i < 400; ++i) ids.push_back(i * i % 101);
  data::write_token_file(
      folder / "t", data::TokenStream::from_ids(ids, /*vocabulary=*/200, std::string(64, 'a')));
  const Ended ended = run_ladder(folder, kQuick + "--data '" + (folder / "t").string() + "'");
  ASSERT_EQ(ended.code, 0) << ended.said;
  EXPECT_THAT(ended.said, HasSubstr("the data's vocabulary is 200, the model's 256"));
  expect_identical(report_of(folder), 4);
}

class SavedBy : public ::testing::TestWithParam<std::string> {};

TEST_P(SavedBy, IsWhatWasTrainedAndCanBeTrainedOn) {
  const TestFolder folder;
  const std::string saved = (folder / "saved").string();
  const Ended first = run_ladder(
      folder, kQuick + "--modes ddp," + GetParam() + " --nproc 3 --save '" + saved + "'");
  ASSERT_EQ(first.code, 0) << first.said;
  EXPECT_THAT(first.said, HasSubstr("weights: " + saved));
  EXPECT_EQ(digest_of_folder(saved, /*classes=*/0), digest_of(report_of(folder), "ddp"));
  EXPECT_THAT(listing(folder), ::testing::ElementsAre("out.json", "saved", "saved/config.json",
                                                      "saved/model.safetensors"));
  EXPECT_EQ(nn::llama_config_from_json(contents_of(folder / "saved/config.json")),
            nn::preset("tiny"));

  // What was saved is where the next run begins, in every mode.
  const Ended second =
      run_ladder(folder, "--steps 1 --seq-len 16 --no-compute-alone --weights '" + saved + "'");
  ASSERT_EQ(second.code, 0) << second.said;
  EXPECT_THAT(second.said, HasSubstr("20 tensors from " + saved + ": float32\n"));
  const json report = report_of(folder);
  expect_identical(report, 4);
  EXPECT_EQ(report.at("model"), "saved");
}

INSTANTIATE_TEST_SUITE_P(All, SavedBy, ::testing::Values("zero1", "zero3", "zero3:whole"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::erase(name, ':');
                           return name;
                         });

TEST(Weights, ValuesAreThoseOfTheFolder) {
  // With a learning rate too small to change a float, what was read is what is saved.
  const TestFolder folder;
  const std::string weights = tiny_weights(folder, "", "");
  const std::string saved = (folder / "saved").string();
  const Ended ended = run_ladder(folder,
                                 "--steps 1 --seq-len 16 --no-compute-alone --lr 1e-30 "
                                 "--modes zero3 --weights '" +
                                     weights + "' --save '" + saved + "'");
  EXPECT_EQ(ended.code, 1);  // the ladder insists on weights that change
  EXPECT_THAT(ended.said, HasSubstr("FAILED zero3"));
  EXPECT_EQ(digest_of_folder(saved, 0), digest_of_folder(weights, 0));
}

TEST(Weights, ClassifierDrawsTheHeadThatTheFolderLacksAndSaysSo) {
  const TestFolder folder;
  const std::string saved = (folder / "saved").string();
  const Ended first = run_ladder(folder, kQuick + "--modes ddp --save '" + saved + "'");
  ASSERT_EQ(first.code, 0) << first.said;
  const Ended ended =
      run_ladder(folder, "--steps 1 --no-compute-alone --seed 5 --task reviews --weights '" +
                             saved + "' --save '" + (folder / "classifier").string() + "'");
  ASSERT_EQ(ended.code, 0) << ended.said;
  EXPECT_THAT(ended.said, HasSubstr("not in it, and drawn by seed 5: score.weight"));
  expect_identical(report_of(folder), 4);
  EXPECT_EQ(digest_of_folder(folder / "classifier", data::kReviewClasses),
            digest_of(report_of(folder), "ddp"));
  const json config = json::parse(contents_of(folder / "classifier/config.json"));
  EXPECT_EQ(config.at("id2label").size(), 5U);
  EXPECT_EQ(config.at("pad_token_id"), 0);
}

// Expects that training from a folder is refused and writes nothing.
void expect_refused(const TestFolder& folder, const std::string& more, const std::string& message) {
  const auto before = listing(folder);
  const Ended ended =
      run_ladder(folder, "--weights '" + (folder / "weights").string() + "' " + more);
  EXPECT_EQ(ended.code, 1);
  EXPECT_THAT(ended.said, HasSubstr(message));
  EXPECT_THAT(ended.said, Not(HasSubstr("step 1/")));
  EXPECT_EQ(listing(folder), before);
}

TEST(Weights, MissingTensorIsRefused) {
  const TestFolder folder;
  tiny_weights(folder, "model.layers.0.self_attn.q_proj.weight", "");
  expect_refused(folder, "", "tensor \"model.layers.0.self_attn.q_proj.weight\" is missing");
}

TEST(Weights, ExtraTensorIsRefused) {
  const TestFolder folder;
  tiny_weights(folder, "", "model.surprise");
  expect_refused(folder, "", "weights/model.safetensors is none of the model's");
}

TEST(Weights, ConfigOfAnotherShapeIsRefused) {
  const TestFolder folder;
  tiny_weights(folder, "", "");
  nn::LlamaConfig config = nn::preset("tiny");
  config.mlp = 200;
  written(folder, "weights/config.json", nn::to_hugging_face_json(config).dump());
  expect_refused(folder, "", "has the shape [176, 64], the model's is [200, 64]");
  written(folder, "weights/config.json", "{\"model_type\": \"gpt2\"}");
  expect_refused(folder, "", "type 'gpt2', but only 'llama' is supported");
}

TEST(Weights, TokensOfAnotherTokenizerAreRefused) {
  const TestFolder folder;
  tiny_weights(folder, "", "");
  const std::string tokenizer = "{\"version\": \"1.0\"}";
  written(folder, "weights/tokenizer.json", tokenizer);
  const std::vector<std::int64_t> ids(400, 7);
  const auto write = [&](const std::string& fingerprint) {
    data::write_token_file(folder / "t", data::TokenStream::from_ids(ids, 256, fingerprint));
  };
  const std::string data = "--data '" + (folder / "t").string() + "' ";
  write(data::Sha256().add(tokenizer + " ").hex());
  expect_refused(folder, data, "were made by the tokenizer");
  write(data::Sha256().add(tokenizer).hex());
  const Ended ended = run_ladder(folder, data + "--modes ddp --steps 1 --seq-len 8 --weights '" +
                                             (folder / "weights").string() + "'");
  EXPECT_THAT(ended.said, Not(HasSubstr("were made by the tokenizer")));
  EXPECT_TRUE(std::filesystem::exists(folder / "out.json")) << ended.said;
}

// The names of all events in a trace.
std::set<std::string> names_in(const std::filesystem::path& path) {
  std::set<std::string> names;
  const json trace = json::parse(contents_of(path), nullptr, /*allow_exceptions=*/false);
  EXPECT_TRUE(trace.is_object()) << path << " is not JSON";
  if (!trace.is_object()) return names;
  for (const json& event : trace.at("traceEvents")) {
    if (event.contains("name")) names.insert(event.at("name").get<std::string>());
  }
  return names;
}

TEST(Trace, EveryModeAndRankHasOneWithTheNamedRanges) {
  const TestFolder folder;
  const Ended ended = run_ladder(folder, kQuick + "--modes ddp,zero1:naive,zero2,zero3 --trace '" +
                                             (folder / "traces/t.json").string() + "'");
  ASSERT_EQ(ended.code, 0) << ended.said;
  const std::map<std::string, std::vector<std::string>> ranges = {
      {"ddp", {"ddp_grad_all_reduce"}},
      {"zero1-naive", {"zero1_grad_reduce", "zero1_param_broadcast"}},
      {"zero2", {"zero2_grad_reduce", "zero2_param_broadcast"}},
      {"zero3", {"zero3_grad_reduce", "zero3_param_gather"}}};
  for (const auto& [mode, expected] : ranges) {
    for (const char* rank : {"rank0", "rank1"}) {
      const std::set<std::string> names =
          names_in(folder / ("traces/t." + mode + "." + rank + ".json"));
      for (const std::string& range : expected) EXPECT_TRUE(names.contains(range)) << mode << range;
      for (const char* range : {"forward", "backward", "optimizer", "aten::mm"}) {
        EXPECT_TRUE(names.contains(range)) << mode << range;
      }
    }
  }
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder / "traces"), {}), 8);
}

}  // namespace
}  // namespace zero::ladder
