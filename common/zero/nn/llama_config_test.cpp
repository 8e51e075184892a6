// Shapes of Llama models: by name, from a config.json, and back.

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include <tests/support/tensors.hpp>
#include <tests/support/test_folder.hpp>
#include <zero/nn/llama_config.hpp>

namespace zero::nn {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using testing::expect_error;
using testing::TestFolder;

TEST(LlamaPresets, AreTheKnownShapes) {
  EXPECT_THAT(preset_names(), ElementsAre("llama-1.5b", "llama-20m", "llama-360m", "smollm2-135m",
                                          "smollm2-360m", "tiny"));
  LlamaConfig untied = preset("smollm2-360m");
  untied.tied = false;
  EXPECT_EQ(untied.parameters(), 361'821'120 + 49152 * 960);
  EXPECT_EQ(preset("tiny").vocabulary, 256);
  for (const std::string& name : preset_names()) EXPECT_NO_THROW(check(preset(name))) << name;
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
  EXPECT_EQ(llama_config_from_json(smollm2_360m().dump()), preset("smollm2-360m"));
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
    expect_error([&] { llama_config_from_json(object.dump()); },
                 {fmt::format("no field '{}'", name)});
    object[name] = nullptr;
    expect_error([&] { llama_config_from_json(object.dump()); }, {name});
  }
}

TEST(LlamaConfigJson, RefusalsNameTheField) {
  struct Wrong {
    const char* name;
    json value;
    const char* message;
  };
  const std::vector<Wrong> rows = {
      {"model_type", "mistral", "type 'mistral', but only 'llama'"},
      {"model_type", 3, "'model_type' of config.json has the wrong type: 3"},
      {"hidden_size", "960", R"(is "960", but must be an integer from 1 to 16777216)"},
      {"hidden_size", 64.5, "'hidden_size' of config.json is 64.5, but must be an integer"},
      {"hidden_size", -960, "'hidden_size' of config.json is -960, but must be"},
      {"hidden_size", std::int64_t{1} << 62, "is 4611686018427387904, but must be"},
      {"hidden_size", 961, "is 961 and not a multiple of 'num_attention_heads', 15"},
      {"vocab_size", 0, "'vocab_size' of config.json is 0, but must be"},
      {"vocab_size", std::uint64_t{1} << 63,
       "'vocab_size' of config.json is 9223372036854775808, but must be"},
      {"vocab_size", kLargestSize + 1, "'vocab_size' of config.json is 16777217, but"},
      {"num_hidden_layers", 0, "'num_hidden_layers' of config.json is 0, but must be"},
      {"num_hidden_layers", kMostLayers + 1, "is 10001, but must be an integer from 1 to"},
      {"num_attention_heads", 0, "'num_attention_heads' of config.json is 0, but must be"},
      {"num_attention_heads", std::uint64_t{1} << 63,
       "'num_attention_heads' of config.json is 9223372036854775808, but must be"},
      {"num_key_value_heads", 0, "'num_key_value_heads' of config.json is 0, but must be"},
      {"num_key_value_heads", 4, "15 heads cannot be shared evenly by 4"},
      {"head_dim", 63, "the head size is 63"},
      {"head_dim", 0, "'head_dim' of config.json is 0, but must be"},
      {"intermediate_size", 0, "'intermediate_size' of config.json is 0, but must be"},
      {"intermediate_size", 2560.0, "'intermediate_size' of config.json is 2560.0, but"},
      {"rms_norm_eps", 0.0, "norm epsilon 0"},
      {"rope_theta", -1.0, "rotary theta -1"},
      {"initializer_range", -0.5, "initializer range -0.5"},
      {"tie_word_embeddings", "yes", "'tie_word_embeddings'"},
      {"hidden_act", "gelu", R"('hidden_act' of config.json is "gelu", but only "silu")"},
      {"attention_bias", true, "'attention_bias' of config.json is true, but only false"},
      {"attention_bias", json::array({true}), "has the wrong type: an array"},
      {"hidden_act", std::string(99, 'x'), R"(xxx..., but only "silu")"},
      {"mlp_bias", true, "'mlp_bias'"},
      {"rope_scaling", json{{"rope_type", "llama3"}}, "'rope_scaling'"},
      {"rope_parameters", json{{"rope_type", "yarn"}}, "'rope_type'"}};
  for (const auto& [name, value, message] : rows) {
    SCOPED_TRACE(fmt::format("{} {}", name, value.dump()));
    json object = smollm2_360m();
    object[name] = value;
    expect_error([&] { llama_config_from_json(object.dump()); }, {message});
  }
}

TEST(LlamaConfigJson, SizesMayBeAsLargeAsTheirBounds) {
  json object = smollm2_360m();
  object["vocab_size"] = kLargestSize;
  object["num_hidden_layers"] = kMostLayers;
  const LlamaConfig config = llama_config_from_json(object.dump());
  EXPECT_EQ(config.vocabulary, kLargestSize);
  EXPECT_EQ(config.layers, kMostLayers);
}

TEST(LlamaConfigJson, RefusesWhatIsNestedTooDeeply) {
  const std::string deep =
      R"({"model_type": "llama", "rope_parameters": )" + testing::nested_json() + "}";
  const std::string message = "config.json: its JSON is nested deeper than 64 levels";
  expect_error([&] { llama_config_from_json(deep); }, {message});
  expect_error([&] { to_hugging_face_json(preset("tiny"), deep); }, {message});
}

TEST(LlamaConfigJson, RefusesWhatIsNoJsonObject) {
  for (const char* text : {"", "{", "[1, 2]", "3", "nonsense"}) {
    expect_error([&] { llama_config_from_json(text); }, {"not a JSON object"});
  }
}

TEST(LlamaConfigCheck, RefusesNegativeClassesAndIntegerParameters) {
  expect_error([] { check({.classes = -1}); }, {"number of classes of the model is -1"});
  expect_error([] { check({.dtype = at::kInt}); }, {"parameters cannot be Int"});
}

TEST(LlamaConfigCheck, RefusesSizesBeyondTheirBounds) {
  expect_error([] { check({.vocabulary = 0}); },
               {"the vocabulary of the model is 0, but must be from 1 to 16777216"});
  expect_error([] { check({.hidden = kLargestSize + 1}); }, {"the hidden size"});
  expect_error([] { check({.layers = kMostLayers + 1}); },
               {"the number of layers of the model is 10001, but must be from 1 to 10000"});
  expect_error([] { check({.classes = kLargestSize + 1}); }, {"classes"});
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
  const LlamaConfig largest{.vocabulary = kLargestSize,
                            .hidden = kLargestSize,
                            .layers = kMostLayers,
                            .heads = kLargestSize,
                            .kv_heads = kLargestSize,
                            .head_size = kLargestSize};
  expect_error([&] { check(largest); }, {"have more than 1000000000000000"});
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
  LlamaConfig config = preset("tiny");
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
  const json merged = to_hugging_face_json(preset("smollm2-360m"), original.dump());
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
  expect_error([&] { read_config_text(folder.path()); },
               {(folder / "config.json").string(), "cannot be opened", "save_pretrained"});
  std::ofstream(folder / "config.json") << smollm2_360m().dump();
  EXPECT_EQ(llama_config_from_json(read_config_text(folder.path())), preset("smollm2-360m"));
}

}  // namespace
}  // namespace zero::nn
