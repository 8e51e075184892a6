#include "model.hpp"

#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include <tests/support/error_of.hpp>
#include <tests/support/save_safetensors_folder.hpp>
#include <tests/support/test_folder.hpp>
#include <zero/nn/defer.hpp>
#include <zero/nn/llama.hpp>
#include <zero/nn/parameters.hpp>
#include <zero/safetensors/safetensors.hpp>

namespace zero::plan {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::TestFolder;

std::int64_t sum(const std::vector<std::int64_t>& values) {
  return std::accumulate(values.begin(), values.end(), std::int64_t{0});
}

std::string refusal_of(const std::filesystem::path& path) {
  return testing::error_of([&] { model_of_files(path); });
}

nn::LlamaConfig with(const char* preset, bool tied, std::int64_t classes) {
  nn::LlamaConfig config = nn::preset(preset);
  config.tied = tied;
  config.classes = classes;
  return config;
}

// The sizes are made from the shape alone and must agree with the real model.
TEST(Model, HasTheSizesOfTheRealOne) {
  for (const nn::LlamaConfig& config :
       {with("tiny", true, 0), with("tiny", false, 0), with("tiny", true, 5),
        with("smollm2-135m", true, 0), with("smollm2-360m", true, 0)}) {
    const auto real = nn::defer([&] { return std::make_shared<nn::Llama>(config); });
    const nn::ParameterList parameters = nn::list_parameters(*real);
    std::vector<std::int64_t> units(parameters.units.size(), 0);
    for (const nn::Parameter& p : parameters.parameters) units[p.unit] += p.numel();
    const Model model = model_of(config, "model");
    EXPECT_EQ(model.parameters, parameters.numel());
    EXPECT_EQ(model.root, units.front());
    EXPECT_EQ(model.units, std::vector<std::int64_t>(units.begin() + 1, units.end()));
  }
}

TEST(Model, OfANumberOnly) {
  const Model seven = model_of_size(7'000'000'000, 32);
  EXPECT_EQ(seven.units.size(), 32U);
  EXPECT_EQ(sum(seven.units), 7'000'000'000);
  EXPECT_NEAR(static_cast<double>(seven.shape.hidden), 4270, 1);
  EXPECT_THAT(seven.notes, Contains(HasSubstr("assumed")));
  EXPECT_THAT(model_of_size(13'000'000'000).notes, Contains(HasSubstr("40 layers")));
  EXPECT_EQ(model_of_size(1).units, std::vector<std::int64_t>{1});
  EXPECT_EQ(sum(model_of_size(7, 3).units), 7);
  EXPECT_THROW(model_of_size(5, 6), Error);
}

TEST(Model, OfTheLargestNumberAndTheMostLayers) {
  const Model model = model_of_size(nn::kMostParameters, nn::kMostLayers);
  EXPECT_EQ(model.units, std::vector<std::int64_t>(nn::kMostLayers, 100'000'000'000));
  const Model uneven = model_of_size(nn::kMostParameters - 1, nn::kMostLayers);
  EXPECT_EQ(sum(uneven.units), nn::kMostParameters - 1);
  EXPECT_EQ(*std::min_element(uneven.units.begin(), uneven.units.end()), 99'999'999'999);
  EXPECT_EQ(uneven.largest_unit(), 100'000'000'000);
}

TEST(ModelFiles, ConfigAlone) {
  const TestFolder folder;
  folder.write("config.json", nn::to_hugging_face_json(nn::preset("smollm2-135m")).dump());
  for (const auto& path : {folder.path(), folder / "config.json"}) {
    const Model model = model_of_files(path);
    EXPECT_EQ(model.parameters, nn::preset("smollm2-135m").parameters());
    EXPECT_EQ(model.units.size(), 30U);
    EXPECT_EQ(model.name, folder.path().filename());
    EXPECT_THAT(model.notes, IsEmpty());
  }
}

TEST(ModelFiles, HeadersCountWhateverTheArchitecture) {
  const TestFolder folder;
  safetensors::NamedTensors tensors = {{"wte.weight", at::zeros({10, 4})},
                                       {"scale", at::zeros({})}};
  for (int i = 0; i < 11; ++i) {
    tensors.emplace_back("h." + std::to_string(i) + ".attn.weight", at::zeros({i + 1, 4}));
    tensors.emplace_back("h." + std::to_string(i) + ".mlp.0.weight", at::zeros({4}));
  }
  testing::save_safetensors_folder(folder.path(), tensors);
  const Model without_config = model_of_files(folder / "model.safetensors");
  EXPECT_EQ(without_config.root, 41);
  ASSERT_EQ(without_config.units.size(), 11U);  // the first number alone is that of a layer
  for (int i = 0; i < 11; ++i) EXPECT_EQ(without_config.units[i], 4 * (i + 1) + 4) << i;
  EXPECT_THAT(without_config.notes, Contains(HasSubstr("guess")));

  folder.write("config.json", R"({"model_type": "gpt2", "n_layer": 11, "n_embd": 4})");
  const Model gpt = model_of_files(folder.path());
  EXPECT_EQ(gpt.parameters, without_config.parameters);
  EXPECT_EQ(gpt.shape.layers, 11);
  EXPECT_EQ(gpt.shape.mlp, 16);
  EXPECT_THAT(gpt.notes, Contains(HasSubstr("gpt2")));
}

TEST(ModelFiles, ADifferenceBetweenConfigAndWeightsIsSaid) {
  const TestFolder folder;
  folder.write("config.json", nn::to_hugging_face_json(nn::preset("tiny")).dump());
  testing::save_safetensors_folder(folder.path(),
                                   {{"model.embed_tokens.weight", at::zeros({256, 64})}});
  const Model model = model_of_files(folder.path());
  EXPECT_EQ(model.parameters, 256 * 64);
  EXPECT_THAT(model.notes, Contains(HasSubstr("hold 16,384")));
}

TEST(ModelFiles, ListsOfSizesAndMissingOnesAreGuessed) {
  const TestFolder folder;
  testing::save_safetensors_folder(folder.path(), {{"h.0.weight", at::zeros({4, 4})}});
  folder.write("config.json",
               R"({"model_type": "other", "n_layer": 1, "n_embd": 4, "n_inner": null,
            "intermediate_size": [16, 24]})");
  const Model model = model_of_files(folder.path());
  EXPECT_EQ(model.shape.hidden, 4);
  EXPECT_EQ(model.shape.mlp, 16);
}

TEST(ModelFiles, SizesThatNoModelHasAreRefusedWithAndWithoutWeights) {
  for (const auto& [key, value] :
       std::vector<std::pair<std::string, std::string>>{{"vocab_size", "9223372036854775808"},
                                                        {"hidden_size", "4611686018427387904"},
                                                        {"hidden_size", "64.5"},
                                                        {"num_hidden_layers", "1000000000"},
                                                        {"intermediate_size", "-176"},
                                                        {"intermediate_size", "\"176\""}}) {
    const TestFolder folder;
    nlohmann::json config = nn::to_hugging_face_json(nn::preset("tiny"));
    config[key] = nlohmann::json::parse(value);
    const auto path = folder.write("config.json", config.dump());
    const std::string expected = fmt::format(
        "{}: config.json: {} is {}; it must be a whole number from ", path.string(), key, value);
    EXPECT_THAT(refusal_of(folder.path()), HasSubstr(expected + "1 to "));
    testing::save_safetensors_folder(folder.path(), {{"h.0.weight", at::zeros({4, 4})}});
    EXPECT_THAT(refusal_of(folder.path()), HasSubstr(expected + "0 to "));
  }
}

TEST(ModelFiles, LayersWithoutElementsAreNoUnits) {
  const TestFolder folder;
  testing::save_safetensors_folder(
      folder.path(), {{"wte.weight", at::zeros({10})}, {"h.0.weight", at::zeros({0})}});
  const Model model = model_of_files(folder.path());
  EXPECT_EQ(model.units, std::vector<std::int64_t>{10});
  EXPECT_EQ(model.root, 0);
}

TEST(ModelFiles, MoreLayersThanCanBePlannedForAreRefused) {
  const TestFolder folder;
  safetensors::NamedTensors tensors;
  for (std::int64_t i = 0; i <= nn::kMostLayers; ++i) {
    tensors.emplace_back(fmt::format("h.{}.weight", i), at::zeros({1}));
  }
  testing::save_safetensors_folder(folder.path(), tensors);
  EXPECT_THAT(refusal_of(folder.path()),
              HasSubstr("in 10001 layers, but 1 to 1000000000000000 in at most 10000"));
}

TEST(ModelFiles, BadOnesAreRefused) {
  const TestFolder folder;
  EXPECT_THAT(refusal_of(folder.path()), HasSubstr("no model is there"));
  EXPECT_THAT(refusal_of(folder / "nowhere"), HasSubstr("no model is there"));
  folder.write("config.json", R"({"model_type": "gpt2"})");
  EXPECT_THAT(refusal_of(folder.path()), HasSubstr("model_type is \"gpt2\""));
  EXPECT_THAT(refusal_of(folder / "notes.txt"), HasSubstr("no model is there"));
  folder.write("config.json", "{");
  EXPECT_THAT(refusal_of(folder.path()), HasSubstr("config.json is not JSON"));
  folder.write("model.safetensors", "short");
  EXPECT_THAT(refusal_of(folder.path()), HasSubstr("config.json"));
  folder.write("config.json", R"({"model_type": "gpt2"})");
  EXPECT_THAT(refusal_of(folder.path()), HasSubstr("model.safetensors"));
}

}  // namespace
}  // namespace zero::plan
