// Shapes of Llama models: by name, from a config.json, and back.

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include <tests/support/tensors.hpp>
#include <tests/support/test_folder.hpp>
#include <tools/models/presets.hpp>
#include <zero/nn/llama_config.hpp>

namespace zero::nn {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using testing::expect_error;
using testing::TestFolder;

TEST(LlamaPresets, AreTheKnownShapes) {
  EXPECT_THAT(tools::preset_names(), ElementsAre("llama-1.5b", "llama-20m", "llama-360m",
                                                 "smollm2-135m", "smollm2-360m", "tiny"));
  LlamaConfig untied = tools::preset("smollm2-360m");
  untied.tied = false;
  EXPECT_EQ(untied.parameters(), 361'821'120 + 49152 * 960);
  EXPECT_EQ(tools::preset("tiny").vocabulary, 256);
  for (const std::string& name : tools::preset_names())
    EXPECT_NO_THROW(check(tools::preset(name))) << name;
}

// What the published model's config.json says, and more that does not concern us.
json smollm2_360m() {
  return json::parse(R"({
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "is_llama_config": true,
    "vocab_size": 49152, "hidden_size": 960, "intermediate_size": 2560, "num_hidden_layers": 32,
    "num_attention_heads": 15, "num_key_value_heads": 5, "max_position_embeddings": 8192,
    "attention_bias": false, "attention_dropout": 0.0, "mlp_bias": false, "hidden_act": "silu",
    "rms_norm_eps": 1e-05, "rope_theta": 100000, "rope_scaling": null, "rope_interleaved": false,
    "tie_word_embeddings": true, "initializer_range": 0.02, "torch_dtype": "bfloat16",
    "bos_token_id": 0, "eos_token_id": 0, "pretraining_tp": 1, "use_cache": true})");
}

TEST(LlamaConfigJson, ThePublishedShapeIsThePreset) {
  EXPECT_EQ(llama_config_from_json(smollm2_360m().dump()), tools::preset("smollm2-360m"));
}

TEST(LlamaConfigJson, TheNewerFormOfRotaryParametersIsRead) {
  json object = smollm2_360m();
  object.erase("rope_theta");
  object.erase("rope_scaling");
  object["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 5000.0}};
  EXPECT_EQ(llama_config_from_json(object.dump()).rope_theta, 5000.0);
  object["rope_parameters"] = {{"rope_theta", 6000.0}};
  EXPECT_EQ(llama_config_from_json(object.dump()).rope_theta, 6000.0);
}

// transformers leaves out what is its default.
TEST(LlamaConfigJson, MissingOptionalFieldsHaveTransformersDefaults) {
  json object = smollm2_360m();
  for (const char* name :
       {"rope_theta", "rope_scaling", "rms_norm_eps", "tie_word_embeddings", "initializer_range",
        "num_key_value_heads", "hidden_act", "attention_bias", "mlp_bias"}) {
    object.erase(name);
  }
  const LlamaConfig config = llama_config_from_json(object.dump());
  EXPECT_EQ(config.rope_theta, 10000.0);
  EXPECT_EQ(config.norm_eps, 1e-6);
  EXPECT_FALSE(config.tied);
  EXPECT_EQ(config.initializer_range, 0.02);
  EXPECT_EQ(config.kv_heads, 15);
  EXPECT_EQ(config.head_size, 64);
  object["head_dim"] = 32;
  EXPECT_EQ(llama_config_from_json(object.dump()).head_size, 32);
}

TEST(LlamaConfigJson, EveryNeededFieldIsMissedByName) {
  for (const char* name : {"model_type", "vocab_size", "hidden_size", "num_hidden_layers",
                           "num_attention_heads", "intermediate_size"}) {
    json object = smollm2_360m();
    object.erase(name);
    expect_error([&] { llama_config_from_json(object.dump()); }, {"config.json", name});
    object[name] = nullptr;
    expect_error([&] { llama_config_from_json(object.dump()); }, {"config.json", name});
  }
}

TEST(LlamaConfigJson, RefusalsNameTheField) {
  const std::string size = "; it must be a whole number from 1 to 16777216";
  const std::vector<std::tuple<const char*, json, std::string>> rows = {
      {"model_type", "mistral", R"(model_type is "mistral"; it must be "llama")"},
      {"hidden_size", "960", R"(hidden_size is "960")" + size},
      {"hidden_size", 64.5, "64.5" + size},
      {"hidden_size", 961, "is 961; without head_dim it must be a multiple of num_attention_heads"},
      {"vocab_size", 0, "vocab_size is 0" + size},
      {"vocab_size", std::uint64_t{1} << 63, "9223372036854775808" + size},
      {"vocab_size", kLargestSize + 1, "16777217" + size},
      {"num_hidden_layers", kMostLayers + 1, "10001; it must be a whole number from 1 to 10000"},
      {"num_attention_heads", 0, "num_attention_heads is 0" + size},
      {"num_key_value_heads", 0, "num_key_value_heads is 0" + size},
      {"num_key_value_heads", 4, "15 heads cannot be shared evenly by 4"},
      {"head_dim", 63, "the head size is 63"},
      {"head_dim", 0, "head_dim is 0" + size},
      {"intermediate_size", 0, "intermediate_size is 0" + size},
      {"rms_norm_eps", 0.0, "norm epsilon 0"},
      {"rope_theta", 0.0, "rotary theta 0"},
      {"initializer_range", -0.5, "initializer_range is -0.5"},
      {"tie_word_embeddings", "yes", "tie_word_embeddings is \"yes\"; it must be true or false"},
      {"hidden_act", "gelu", R"(hidden_act is "gelu"; it must be "silu")"},
      {"attention_bias", true, "attention_bias is true; it must be false"},
      {"mlp_bias", true, "mlp_bias"},
      {"rope_scaling", json{{"rope_type", "llama3"}}, "scaled rotary positions are not supported"},
      {"rope_parameters", json{{"rope_type", "yarn"}}, R"("yarn"; it must be "default")"}};
  for (const auto& [name, value, message] : rows) {
    SCOPED_TRACE(fmt::format("{} {}", name, value.dump()));
    json object = smollm2_360m();
    object[name] = value;
    expect_error([&] { llama_config_from_json(object.dump()); }, {message});
  }
}

TEST(LlamaConfigJson, RefusesWhatIsNoJsonObjectOrNestedTooDeeply) {
  const std::string deep =
      R"({"model_type": "llama", "rope_parameters": )" + testing::nested_json() + "}";
  for (const std::string& text : {std::string(), std::string("[1, 2]"), deep}) {
    const char* const message = text == deep ? "JSON is nested deeper than 64 levels" : "JSON";
    expect_error([&] { llama_config_from_json(text); }, {"config.json", message});
    expect_error([&] { to_hugging_face_json(tools::preset("tiny"), text); },
                 {"config.json", message});
  }
}

TEST(LlamaConfigCheck, RefusesWhatNoFileCanSay) {
  expect_error([] { check({.vocabulary = 0}); }, {"the model: vocab_size is 0; it must be"});
  expect_error([] { check({.classes = -1}); }, {"classes is -1"});
  expect_error([] { check({.classes = kLargestSize + 1}); }, {"classes"});
  expect_error([] { check({.dtype = at::kInt}); }, {"parameters cannot be Int"});
}

// 10^4 (29,999 + 10^4 (8 + 3 x 3,333,329 + 2) + 1) are 10^15.
TEST(LlamaConfigCheck, CountsParametersThatTheirNumberCannotHold) {
  LlamaConfig config{.vocabulary = 29'999,
                     .hidden = 10'000,
                     .layers = kMostLayers,
                     .heads = 1,
                     .kv_heads = 1,
                     .head_size = 2,
                     .mlp = 3'333'329};
  EXPECT_EQ(config.parameters(), kMostParameters);
  EXPECT_NO_THROW(check(config));
  ++config.vocabulary;
  expect_error([&] { check(config); }, {"more than 1000000000000000 parameters"});
  // More than 2^87, of which 64 bits would keep less than 10^15.
  config.vocabulary = config.hidden = config.heads = config.kv_heads = config.head_size =
      kLargestSize;
  expect_error([&] { check(config); }, {"have more than 1000000000000000"});
}

TEST(LlamaConfigJson, ComesBackFromWhatItWrites) {
  LlamaConfig config{.hidden = 48,
                     .head_size = 10,
                     .rope_theta = 1234.5,
                     .norm_eps = 3e-4,
                     .initializer_range = 0.5};
  for (const bool tied : {true, false}) {
    config.tied = tied;
    EXPECT_EQ(llama_config_from_json(to_hugging_face_json(config).dump()), config);
  }
}

TEST(LlamaConfigJson, SaysDtypeAndClassesAsTransformersReadsThem) {
  LlamaConfig config = tools::preset("tiny");
  EXPECT_EQ(to_hugging_face_json(config)["architectures"], json{"LlamaForCausalLM"});
  EXPECT_FALSE(to_hugging_face_json(config).contains("id2label"));
  config.classes = 3;
  config.dtype = at::kBFloat16;
  const json object = to_hugging_face_json(config);
  EXPECT_EQ(object["architectures"], json{"LlamaForSequenceClassification"});
  EXPECT_EQ(object["id2label"].size(), 3U);
  EXPECT_EQ(object["label2id"]["LABEL_2"], 2);
  EXPECT_EQ(object["torch_dtype"], "bfloat16");
  // Read again it is a language model in fp32, whatever the file says.
  const LlamaConfig read = llama_config_from_json(object.dump());
  EXPECT_EQ(read.classes, 0);
  EXPECT_EQ(read.dtype, at::kFloat);
}

TEST(LlamaConfigJson, KeepsWhatTheOriginalSaidAboutOtherThings) {
  json original = smollm2_360m();
  original["dtype"] = "bfloat16";
  original["id2label"] = {{"0", "bad"}};
  original["num_labels"] = 9;
  original["hidden_size"] = 3;
  const json merged = to_hugging_face_json(tools::preset("smollm2-360m"), original.dump());
  EXPECT_EQ(merged["max_position_embeddings"], 8192);
  EXPECT_EQ(merged["bos_token_id"], 0);
  EXPECT_EQ(merged["hidden_size"], 960);
  EXPECT_EQ(merged["torch_dtype"], "float32");
  for (const char* stale : {"dtype", "id2label", "num_labels"}) {
    EXPECT_FALSE(merged.contains(stale)) << stale;
  }
}

TEST(LlamaConfigFile, IsReadOrNamed) {
  const TestFolder folder;
  expect_error([&] { tools::read_config_text(folder.path()); },
               {(folder / "config.json").string(), "cannot be opened", "save_pretrained"});
  std::ofstream(folder / "config.json") << smollm2_360m().dump();
  EXPECT_EQ(llama_config_from_json(tools::read_config_text(folder.path())),
            tools::preset("smollm2-360m"));
}

}  // namespace
}  // namespace zero::nn
