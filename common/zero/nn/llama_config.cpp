#include <c10/core/ScalarType.h>
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include <zero/base/error.hpp>
#include <zero/base/keys.hpp>
#include <zero/nn/llama_config.hpp>

namespace zero::nn {
namespace {

using nlohmann::json;

// The fields under Hugging Face's names, and what is supported with one value alone.
void declare(base::Keys& keys, LlamaConfig& c) {
  const auto only = [&keys](const char* key, const json& right) {
    keys.field(
        key,
        [&keys, key, right](const json& value) {
          if (value != right) keys.refuse(key, value, right.dump());
        },
        [right] { return right; });
  };
  only("model_type", "llama");
  only("hidden_act", "silu");
  only("attention_bias", false);
  only("mlp_bias", false);
  keys.count("vocab_size", 1, c.vocabulary, kLargestSize);
  keys.count("hidden_size", 1, c.hidden, kLargestSize);
  keys.count("num_hidden_layers", 1, c.layers, kMostLayers);
  keys.count("num_attention_heads", 1, c.heads, kLargestSize);
  keys.count("num_key_value_heads", 1, c.kv_heads, kLargestSize);
  keys.count("head_dim", 1, c.head_size, kLargestSize);
  keys.count("intermediate_size", 1, c.mlp, kLargestSize);
  keys.real("rope_theta", "a number above 0", c.rope_theta);
  keys.real("rms_norm_eps", "a number above 0", c.norm_eps);
  keys.flag("tie_word_embeddings", c.tied);
  keys.real("initializer_range", "a number of 0 or more", c.initializer_range);
}

// The number of elements: exact up to 2^53, which is more than check() accepts. The sizes of an
// absurd model would overflow an integer.
double count_elements(const LlamaConfig& c) {
  const auto hidden = static_cast<double>(c.hidden);
  const double projections =
      static_cast<double>(c.head_size) * static_cast<double>(2 * c.heads + 2 * c.kv_heads);
  const double layer = hidden * (projections + 3 * static_cast<double>(c.mlp) + 2);
  const double embedding = static_cast<double>(c.vocabulary) * hidden;
  const double untied = c.tied ? 0 : embedding;
  const double head = c.classes > 0 ? static_cast<double>(c.classes) * hidden : untied;
  return embedding + static_cast<double>(c.layers) * layer + hidden + head;
}

// The default of transformers for a file without head_dim.
std::int64_t usual_head_size(const LlamaConfig& config) {
  if (config.hidden % config.heads == 0) return config.hidden / config.heads;
  throw Error(
      fmt::format("config.json: hidden_size is {}; without head_dim it must be a multiple of "
                  "num_attention_heads, {}",
                  config.hidden, config.heads));
}

}  // namespace

std::int64_t LlamaConfig::parameters() const {
  return static_cast<std::int64_t>(count_elements(*this));
}

void check(const LlamaConfig& config) {
  LlamaConfig copy = config;
  base::Keys keys("the model");
  declare(keys, copy);
  keys.count("classes", 0, copy.classes, kLargestSize);
  keys.require([&] { return count_elements(config) <= static_cast<double>(kMostParameters); },
               fmt::format("{} have more than {} parameters: smaller sizes are needed",
                           keys.json().dump(), kMostParameters));
  keys.require([&] { return config.heads % config.kv_heads == 0; },
               fmt::format("{} heads cannot be shared evenly by {} key/value heads", config.heads,
                           config.kv_heads));
  keys.require([&] { return config.head_size % 2 == 0; },
               fmt::format("the head size is {}, but rotary positions turn pairs: it must be even",
                           config.head_size));
  keys.require([&] { return config.norm_eps > 0 && config.rope_theta > 0; },
               fmt::format("norm epsilon {} and rotary theta {} must be positive", config.norm_eps,
                           config.rope_theta));
  keys.require([&] { return at::isFloatingType(config.dtype); },
               fmt::format("parameters cannot be {}: use float, double, bfloat16 or half",
                           c10::toString(config.dtype)));
  keys.read(keys.json());
}

void check_tensor_parallel(const LlamaConfig& config, int ranks) {
  const auto expect_even = [ranks](std::int64_t count, const char* what, const char* advice = "") {
    if (count % ranks == 0) return;
    throw Error(fmt::format("the model has {} {}, which {} tensor ranks cannot share evenly{}",
                            count, what, ranks, advice));
  };
  const char* const preset =
      " (SmolLM2 has 15 and 5, or 9 and 3; the preset llama-360m has 16 and 4)";
  expect_even(config.heads, "heads", preset);
  expect_even(config.kv_heads, "key/value heads", preset);
  expect_even(config.mlp, "features in its MLP (intermediate_size)");
  expect_even(config.vocabulary, "tokens in its vocabulary");
}

LlamaConfig llama_config_from_json(std::string_view text) {
  json object = base::json_object(std::string(text), "config.json");
  // What transformers assumes of fields that a file leaves out.
  LlamaConfig config{.rope_theta = 10000.0, .norm_eps = 1e-6, .tied = false};
  base::Keys keys("config.json");
  declare(keys, config);
  keys.field("rope_type", [&](const json& value) {
    if (value != "default") keys.refuse("rope_type", value, "\"default\"");
  });
  keys.field("rope_scaling", [&](const json& value) {
    keys.refuse("rope_scaling", value, "null: scaled rotary positions are not supported");
  });
  // The newer form, which replaces both older fields.
  if (const json rope = object.value("rope_parameters", json()); rope.is_object()) {
    object.erase("rope_scaling");
    object.update(rope);
  }
  for (auto field = object.begin(); field != object.end();) {  // the others are no matter of shape
    field = keys.has(field.key()) && !field->is_null() ? std::next(field) : object.erase(field);
  }
  keys.read(json::object({{"model_type", object.value("model_type", json())}}));
  for (const char* needed : {"vocab_size", "hidden_size", "num_hidden_layers",
                             "num_attention_heads", "intermediate_size"}) {
    if (!object.contains(needed)) throw Error(fmt::format("config.json has no {}", needed));
  }
  keys.read(object);
  if (!object.contains("num_key_value_heads")) config.kv_heads = config.heads;
  if (!object.contains("head_dim")) config.head_size = usual_head_size(config);
  check(config);
  return config;
}

json to_hugging_face_json(const LlamaConfig& config, std::string_view original) {
  json object = base::json_object(std::string(original), "config.json");
  // "dtype" is the newer name of "torch_dtype"; labels are those of the new head, if there is one.
  for (const char* stale : {"dtype", "id2label", "label2id", "num_labels"}) object.erase(stale);
  LlamaConfig copy = config;
  base::Keys keys("config.json");
  declare(keys, copy);
  object.update(keys.json());
  object["architectures"] = {config.classes > 0 ? "LlamaForSequenceClassification"
                                                : "LlamaForCausalLM"};
  object["torch_dtype"] = c10::getDtypeNames(config.dtype).first;
  // transformers counts the classes of a classifier by the entries of id2label.
  for (std::int64_t i = 0; i < config.classes; ++i) {
    object["id2label"][std::to_string(i)] = fmt::format("LABEL_{}", i);
    object["label2id"][fmt::format("LABEL_{}", i)] = i;
  }
  return object;
}

}  // namespace zero::nn
