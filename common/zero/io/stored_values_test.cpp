#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include <tests/support/safetensors_test_files.hpp>
#include <zero/io/stored_values.hpp>
#include <zero/nn/llama.hpp>

namespace zero::io {
namespace {

using testing::TestFolder;

std::shared_ptr<nn::Llama> make_model(const nn::LlamaConfig& config) {
  const nn::DeferredStorage deferred;
  return std::make_shared<nn::Llama>(config);
}

// Tensors under the names and with the shapes of a model.
NamedTensors random_weights(const nn::LlamaConfig& config, at::ScalarType dtype) {
  NamedTensors tensors;
  const auto model = make_model(config);
  for (const nn::Parameter& p : nn::list_parameters(*model).parameters) {
    tensors.emplace_back(p.name, at::randn(p.tensor.sizes()).to(dtype));
  }
  return tensors;
}

const at::Tensor& find(const NamedTensors& tensors, const std::string& name) {
  for (const auto& [key, tensor] : tensors) {
    if (key == name) return tensor;
  }
  throw Error("no tensor " + name);
}

void remove_tensor(NamedTensors& tensors, const std::string& name) {
  std::erase_if(tensors, [&](const auto& item) { return item.first == name; });
}

// What making StoredValues for `config` from `tensors` throws; empty where it works.
std::string refusal(const nn::LlamaConfig& config, const NamedTensors& tensors,
                    std::int64_t max_bytes = 1 << 30) {
  const TestFolder folder;
  save_safetensors_folder(folder.path(), tensors, max_bytes);
  const auto model = make_model(config);
  try {
    StoredValues(folder.path(), nn::list_parameters(*model), llama_values_options(config, 1));
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

#define EXPECT_SAYS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

class StoredDtype : public ::testing::TestWithParam<at::ScalarType> {};

TEST_P(StoredDtype, BecomesTheParametersDtypeExactlyAsTensorToDoes) {
  const TestFolder folder;
  const nn::LlamaConfig config = nn::preset("tiny");
  const NamedTensors tensors = random_weights(config, GetParam());
  save_safetensors_folder(folder.path(), tensors, /*max_bytes=*/100'000);  // several files
  const auto model = make_model(config);
  const nn::ParameterList list = nn::list_parameters(*model);
  StoredValues values(folder.path(), list, llama_values_options(config, 1));
  initialize_parameters(*model, values);
  for (const nn::Parameter& p : list.parameters) {
    EXPECT_EQ(p.tensor.scalar_type(), at::kFloat);
    EXPECT_TRUE(at::equal(p.tensor.detach(), find(tensors, p.name).to(at::kFloat))) << p.name;
  }
  EXPECT_TRUE(values.missing().empty());
  EXPECT_SAYS(values.describe(),
              std::to_string(list.size()) + " tensors from " + folder.path().string());
  EXPECT_EQ(values.describe().find("converted to float32") != std::string::npos,
            GetParam() != at::kFloat);
}

INSTANTIATE_TEST_SUITE_P(All, StoredDtype,
                         ::testing::Values(at::kFloat, at::kHalf, at::kBFloat16, at::kDouble),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

TEST(StoredValues, MissingTensorIsNamedWithItsShapeAndTheFolder) {
  NamedTensors tensors = random_weights(nn::preset("tiny"), at::kFloat);
  remove_tensor(tensors, "model.layers.1.mlp.up_proj.weight");
  const std::string message = refusal(nn::preset("tiny"), tensors);
  EXPECT_SAYS(message, "the weights in /tmp");
  EXPECT_SAYS(message, "tensor \"model.layers.1.mlp.up_proj.weight\" is missing");
  EXPECT_SAYS(message, "[176, 64]");
}

TEST(StoredValues, ExtraTensorIsNamedWithItsFile) {
  NamedTensors tensors = random_weights(nn::preset("tiny"), at::kFloat);
  tensors.emplace_back("model.layers.2.extra", at::randn({3}));
  const std::string message = refusal(nn::preset("tiny"), tensors, /*max_bytes=*/100'000);
  EXPECT_SAYS(message, "tensor \"model.layers.2.extra\" in ");
  EXPECT_SAYS(message, "model-00005-of-00005.safetensors is none of the model's");
}

TEST(StoredValues, OtherShapeIsNamedWithFileAndBothShapes) {
  NamedTensors tensors = random_weights(nn::preset("tiny"), at::kFloat);
  remove_tensor(tensors, "model.norm.weight");
  tensors.emplace_back("model.norm.weight", at::randn({65}));
  const std::string message = refusal(nn::preset("tiny"), tensors);
  EXPECT_SAYS(message, "tensor \"model.norm.weight\" in ");
  EXPECT_SAYS(message, "model.safetensors has the shape [65], the model's is [64]");
}

TEST(StoredValues, OtherDtypeIsRefused) {
  NamedTensors tensors = random_weights(nn::preset("tiny"), at::kFloat);
  remove_tensor(tensors, "model.norm.weight");
  tensors.emplace_back("model.norm.weight", at::ones({64}, at::kLong));
  EXPECT_SAYS(refusal(nn::preset("tiny"), tensors), "is Long, which is not converted to float32");
}

TEST(StoredValues, ManyProblemsAreCounted) {
  nn::LlamaConfig larger = nn::preset("tiny");
  larger.layers = 3;
  const std::string message = refusal(larger, random_weights(nn::preset("tiny"), at::kFloat));
  EXPECT_SAYS(message, "and 5 more");  // nine tensors of the third layer, four of them shown
}

TEST(StoredValues, ClassifierFromALanguageModelDrawsItsHeadBySeed) {
  nn::LlamaConfig config = nn::preset("tiny");
  NamedTensors tensors = random_weights(config, at::kFloat);
  tensors.emplace_back("lm_head.weight", at::randn({256, 64}));
  const TestFolder folder;
  save_safetensors_folder(folder.path(), tensors);
  config.classes = 5;
  const auto model = make_model(config);
  StoredValues values(folder.path(), nn::list_parameters(*model), llama_values_options(config, 7));
  initialize_parameters(*model, values);
  const auto seeded = make_model(config);
  nn::SeededValues by_seed(7);
  initialize_parameters(*seeded, by_seed);
  const auto own = model->named_parameters();
  EXPECT_TRUE(at::equal(own["score.weight"], seeded->named_parameters()["score.weight"]));
  EXPECT_TRUE(at::equal(own["model.norm.weight"].detach(), find(tensors, "model.norm.weight")));
  EXPECT_EQ(values.missing(), (std::vector<std::string>{"score.weight"}));
  EXPECT_SAYS(values.describe(), "not in it, and drawn by seed 7: score.weight");
  EXPECT_SAYS(values.describe(), "in it, and not read: lm_head.weight");
}

TEST(StoredValues, ClassifiersOwnHeadIsRead) {
  nn::LlamaConfig config = nn::preset("tiny");
  config.classes = 5;
  const NamedTensors tensors = random_weights(config, at::kFloat);
  const TestFolder folder;
  save_safetensors_folder(folder.path(), tensors);
  const auto model = make_model(config);
  StoredValues values(folder.path(), nn::list_parameters(*model), llama_values_options(config, 7));
  initialize_parameters(*model, values);
  EXPECT_TRUE(
      at::equal(model->named_parameters()["score.weight"].detach(), find(tensors, "score.weight")));
  // A language model has no use for that head.
  config.classes = 0;
  EXPECT_SAYS(refusal(config, tensors), "tensor \"score.weight\" in ");
}

TEST(StoredValues, UntiedHeadMayNotBeMissing) {
  nn::LlamaConfig config = nn::preset("tiny");
  const NamedTensors tied = random_weights(config, at::kFloat);
  config.tied = false;
  EXPECT_SAYS(refusal(config, tied), "tensor \"lm_head.weight\" is missing");
  EXPECT_EQ(refusal(config, random_weights(config, at::kFloat)), "");
}

TEST(ConfigOfWeights, MissingFileSaysWhatAFolderNeeds) {
  const TestFolder folder;
  std::string message;
  try {
    nn::read_config_text(folder.path());
  } catch (const Error& error) {
    message = error.what();
  }
  EXPECT_SAYS(message, (folder / "config.json").string());
  EXPECT_SAYS(message, "save_pretrained");
}

TEST(ConfigOfWeights, SavedConfigKeepsWhatItDoesNotSpeakOf) {
  const nn::LlamaConfig config = nn::preset("tiny");
  const auto saved = to_hugging_face_json(
      config, R"({"model_type": "llama", "eos_token_id": 9, "max_position_embeddings": 8192,
                  "dtype": "bfloat16", "id2label": {"0": "x"}, "hidden_size": 3})");
  EXPECT_EQ(saved["eos_token_id"], 9);
  EXPECT_EQ(saved["max_position_embeddings"], 8192);
  EXPECT_EQ(saved["hidden_size"], 64);
  EXPECT_EQ(saved["torch_dtype"], "float32");
  EXPECT_FALSE(saved.contains("dtype"));
  EXPECT_FALSE(saved.contains("id2label"));
  EXPECT_EQ(nn::llama_config_from_json(saved.dump()), config);
}

}  // namespace
}  // namespace zero::io
