#include <c10/core/ScalarType.h>
#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>
#include <ranges>

#include <zero/base/error.hpp>
#include <zero/base/json_depth.hpp>
#include <zero/base/mapped_file.hpp>
#include <zero/base/names.hpp>
#include <zero/nn/llama_config.hpp>

namespace zero::nn {
namespace {

using nlohmann::json;

const std::map<std::string, LlamaConfig, std::less<>>& presets() {
  // vocabulary, hidden, layers, heads, key/value heads, head size, MLP
  static const std::map<std::string, LlamaConfig, std::less<>> all = {
      {"llama-1.5b", {40379, 1600, 48, 25, 25, 64, 4096}},
      {"llama-20m", {256, 512, 6, 8, 8, 64, 1408}},
      {"llama-360m", {49152, 960, 32, 16, 4, 60, 2560}},
      {"smollm2-135m", {49152, 576, 30, 9, 3, 64, 1536}},
      {"smollm2-360m", {49152, 960, 32, 15, 5, 64, 2560}},
      {"tiny", {}},
  };
  return all;
}

// A value for a message. Arrays and objects are only named: writing out deep nesting would need as
// much stack.
std::string value_text(const json& value) {
  constexpr std::size_t kLongest = 80;
  if (value.is_structured()) return fmt::format("an {}", value.type_name());
  const std::string text = value.dump(/*indent=*/-1, ' ', /*ensure_ascii=*/true);
  return text.size() <= kLongest ? text : text.substr(0, kLongest) + "...";
}

// Reads fields of a config.json and says in every error which field is meant.
class Fields {
 public:
  explicit Fields(const json& object) : object_(object) {}

  bool has(const char* key) const { return object_.contains(key) && !object_[key].is_null(); }

  template <class T>
  T get(const char* key) const {
    need(key);
    try {
      return object_[key].get<T>();
    } catch (const json::exception&) {
      throw Error(fmt::format("field '{}' of config.json has the wrong type: {}", key,
                              value_text(object_[key])));
    }
  }

  template <class T>
  T get_or(const char* key, T fallback) const {
    return has(key) ? get<T>(key) : fallback;
  }

  std::int64_t size(const char* key, std::int64_t most = kLargestSize) const {
    need(key);
    return size_from_json(object_, key, /*least=*/1, most);
  }

  // Throws if a feature that is not supported is switched on.
  template <class T>
  void expect(const char* key, const T& expected) const {
    if (get_or<T>(key, expected) == expected) return;
    throw Error(fmt::format("field '{}' of config.json is {}, but only {} is supported", key,
                            value_text(object_[key]), json(expected).dump()));
  }

 private:
  void need(const char* key) const {
    if (!has(key)) throw Error(fmt::format("config.json has no field '{}'", key));
  }

  const json& object_;
};

double read_rope_theta(const Fields& fields) {
  constexpr double kTransformersDefault = 10000.0;
  if (fields.has("rope_parameters")) {
    const json parameters = fields.get<json>("rope_parameters");
    const Fields rope(parameters);
    rope.expect<std::string>("rope_type", "default");
    return rope.get_or("rope_theta", fields.get_or("rope_theta", kTransformersDefault));
  }
  if (fields.has("rope_scaling")) {
    throw Error(
        "field 'rope_scaling' of config.json is set, but scaled rotary positions are not "
        "supported");
  }
  return fields.get_or("rope_theta", kTransformersDefault);
}

// The default of transformers for a file without head_dim.
std::int64_t usual_head_size(std::int64_t hidden, std::int64_t heads) {
  if (hidden % heads == 0) return hidden / heads;
  throw Error(
      fmt::format("field 'hidden_size' of config.json is {} and not a multiple of "
                  "'num_attention_heads', {}: one of them must change, or 'head_dim' be given",
                  hidden, heads));
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

void check_size(std::int64_t value, const char* name, std::int64_t most = kLargestSize,
                std::int64_t least = 1) {
  if (value >= least && value <= most) return;
  throw Error(
      fmt::format("{} of the model is {}, but must be from {} to {}", name, value, least, most));
}

void check_sizes(const LlamaConfig& config) {
  check_size(config.vocabulary, "the vocabulary");
  check_size(config.hidden, "the hidden size");
  check_size(config.layers, "the number of layers", kMostLayers);
  check_size(config.heads, "the number of heads");
  check_size(config.kv_heads, "the number of key/value heads");
  check_size(config.head_size, "the head size");
  check_size(config.mlp, "the MLP size");
  check_size(config.classes, "the number of classes", kLargestSize, /*least=*/0);
  if (count_elements(config) > static_cast<double>(kMostParameters)) {
    throw Error(fmt::format(
        "{} layers of hidden size {}, {} heads of {} and MLP size {}, with a vocabulary of {}, "
        "have more than {} parameters: smaller sizes are needed",
        config.layers, config.hidden, config.heads, config.head_size, config.mlp, config.vocabulary,
        kMostParameters));
  }
}

}  // namespace

std::int64_t LlamaConfig::parameters() const {
  return static_cast<std::int64_t>(count_elements(*this));
}

const std::vector<std::string>& preset_names() {
  static const auto keys = presets() | std::views::keys;
  static const std::vector<std::string> names(keys.begin(), keys.end());
  return names;
}

LlamaConfig preset(std::string_view name) {
  const auto found = presets().find(name);
  if (found != presets().end()) return found->second;
  throw Error(base::unknown_name_message("model", name, preset_names()));
}

void check(const LlamaConfig& config) {
  check_sizes(config);
  if (config.heads % config.kv_heads != 0) {
    throw Error(fmt::format("{} heads cannot be shared evenly by {} key/value heads", config.heads,
                            config.kv_heads));
  }
  if (config.head_size % 2 != 0) {
    throw Error(fmt::format("the head size is {}, but rotary positions turn pairs: it must be even",
                            config.head_size));
  }
  if (!(config.norm_eps > 0) || !(config.rope_theta > 0) || !(config.initializer_range >= 0)) {
    throw Error(
        fmt::format("norm epsilon {}, rotary theta {} and initializer range {} must be positive",
                    config.norm_eps, config.rope_theta, config.initializer_range));
  }
  if (!at::isFloatingType(config.dtype)) {
    throw Error(fmt::format("parameters cannot be {}: use float, double, bfloat16 or half",
                            c10::toString(config.dtype)));
  }
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

std::int64_t size_from_json(const json& config, const char* key, std::int64_t least,
                            std::int64_t most) {
  const json& value = config.at(key);
  // A number that does not fit 63 bits becomes negative here, and no size may be negative.
  const std::int64_t size = value.is_number_integer() ? value.get<std::int64_t>() : -1;
  if (size >= least && size <= most) return size;
  throw Error(fmt::format("field '{}' of config.json is {}, but must be an integer from {} to {}",
                          key, value_text(value), least, most));
}

LlamaConfig llama_config_from_json(std::string_view text) {
  const json object =
      json::parse(text, base::bounded_depth("config.json"), /*allow_exceptions=*/false);
  if (!object.is_object()) throw Error("config.json is not a JSON object");
  const Fields fields(object);
  if (fields.get<std::string>("model_type") != "llama") {
    throw Error(
        fmt::format("config.json describes a model of type '{}', but only 'llama' is supported",
                    fields.get<std::string>("model_type")));
  }
  fields.expect<std::string>("hidden_act", "silu");
  fields.expect("attention_bias", false);
  fields.expect("mlp_bias", false);

  LlamaConfig config;
  config.vocabulary = fields.size("vocab_size");
  config.hidden = fields.size("hidden_size");
  config.layers = fields.size("num_hidden_layers", kMostLayers);
  config.heads = fields.size("num_attention_heads");
  config.kv_heads =
      fields.has("num_key_value_heads") ? fields.size("num_key_value_heads") : config.heads;
  config.head_size = fields.has("head_dim") ? fields.size("head_dim")
                                            : usual_head_size(config.hidden, config.heads);
  config.mlp = fields.size("intermediate_size");
  config.rope_theta = read_rope_theta(fields);
  config.norm_eps = fields.get_or("rms_norm_eps", 1e-6);
  config.tied = fields.get_or("tie_word_embeddings", false);
  config.initializer_range = fields.get_or("initializer_range", 0.02);
  check(config);
  return config;
}

std::string read_config_text(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / "config.json";
  return base::read_file(
      path, fmt::format("{} (a folder as save_pretrained writes it is needed, with config.json and "
                        "model.safetensors, or several files and model.safetensors.index.json)",
                        path.string()));
}

json to_hugging_face_json(const LlamaConfig& config, std::string_view original) {
  json merged = json::parse(original, base::bounded_depth("config.json"));
  // "dtype" is the newer name of "torch_dtype"; labels are those of the new head, if there is one.
  for (const char* stale : {"dtype", "id2label", "label2id", "num_labels"}) merged.erase(stale);
  merged.update(to_hugging_face_json(config));
  return merged;
}

json to_hugging_face_json(const LlamaConfig& config) {
  json object = {
      {"model_type", "llama"},
      {"architectures",
       {config.classes > 0 ? "LlamaForSequenceClassification" : "LlamaForCausalLM"}},
      {"vocab_size", config.vocabulary},
      {"hidden_size", config.hidden},
      {"num_hidden_layers", config.layers},
      {"num_attention_heads", config.heads},
      {"num_key_value_heads", config.kv_heads},
      {"head_dim", config.head_size},
      {"intermediate_size", config.mlp},
      {"hidden_act", "silu"},
      {"rope_theta", config.rope_theta},
      {"rms_norm_eps", config.norm_eps},
      {"tie_word_embeddings", config.tied},
      {"initializer_range", config.initializer_range},
      {"attention_bias", false},
      {"mlp_bias", false},
      {"torch_dtype", c10::getDtypeNames(config.dtype).first},
  };
  // transformers counts the classes of a classifier by the entries of id2label.
  for (std::int64_t i = 0; i < config.classes; ++i) {
    object["id2label"][std::to_string(i)] = fmt::format("LABEL_{}", i);
    object["label2id"][fmt::format("LABEL_{}", i)] = i;
  }
  return object;
}

}  // namespace zero::nn
