#include "model.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include <zero/base/error.hpp>
#include <zero/base/json_depth.hpp>
#include <zero/base/keys.hpp>
#include <zero/base/thousands.hpp>
#include <zero/safetensors/safetensors.hpp>

namespace zero::plan {
namespace {

namespace fs = std::filesystem;

// A layer by the first number in a tensor's name: {"model.layers.", 17}.
using Layer = std::pair<std::string, int>;
// The layer of "model.layers.17.mlp.up_proj.weight". Nothing for "lm_head.weight": it is the
// root's.
std::optional<Layer> layer_of(const std::string& tensor) {
  std::istringstream words(tensor);
  std::string before, word;
  for (; std::getline(words, word, '.'); before += word + ".") {
    const bool is_number = word.find_first_not_of("0123456789") == std::string::npos;
    if (is_number && !word.empty() && word.size() < 10) return Layer{before, std::stoi(word)};
  }
  return std::nullopt;
}

// By the headers of safetensors, whatever the architecture. Units are in the order of layers, so
// that layer 2 comes before layer 10. There is nothing to gather of a layer without elements.
void count_tensors(const fs::path& weights, Model& model) {
  const safetensors::Folder folder(weights);
  std::map<Layer, std::int64_t> layers;
  model.parameters = model.root = 0;
  for (const std::string& name : folder.names()) {
    const std::int64_t elements = folder.info(name).elements();
    const std::optional<Layer> layer = layer_of(name);
    model.parameters += elements;
    (layer ? layers[*layer] : model.root) += elements;
  }
  model.units.clear();
  for (const auto& [layer, elements] : layers) {
    if (elements > 0) model.units.push_back(elements);
  }
  if (model.units.empty()) std::swap(model.root, model.units.emplace_back());
  const std::int64_t count = std::ssize(model.units);
  if (model.parameters > 0 && model.parameters <= nn::kMostParameters && count <= nn::kMostLayers)
    return;
  throw Error(
      fmt::format("{}: {} parameters in {} layers, but 1 to {} in at most {} are planned for",
                  weights.string(), model.parameters, count, nn::kMostParameters, nn::kMostLayers));
}

// What other architectures call the sizes of a transformer; 0 if a file says nothing, or has a
// list with a size for each layer.
Shape rough_shape(const nlohmann::json& config) {
  const auto size = [&](std::initializer_list<const char*> names, std::int64_t most) {
    for (const char* key : names) {
      const auto value = config.value(key, nlohmann::json());
      if (value.is_null() || value.is_structured()) continue;
      std::int64_t size = 0;
      base::Keys keys("config.json");
      keys.count(key, 0, size, most);
      keys.read(nlohmann::json::object({{key, value}}));
      return size;
    }
    return std::int64_t{0};
  };
  const std::int64_t hidden = size({"hidden_size", "n_embd", "d_model"}, nn::kLargestSize);
  const std::int64_t mlp =
      size({"intermediate_size", "n_inner", "ffn_dim", "d_ff"}, nn::kLargestSize);
  return {.layers = size({"num_hidden_layers", "n_layer", "num_layers"}, nn::kMostLayers),
          .hidden = hidden,
          .attention = hidden,
          .mlp = mlp > 0 ? mlp : 4 * hidden,
          .mlp_tensors = 3,
          .vocabulary = size({"vocab_size"}, nn::kLargestSize)};
}

// A Llama; or, beside weights that say what it consists of, the sizes of another transformer.
Model read_config(const fs::path& folder, bool has_weights) {
  const std::string text = nn::read_config_text(folder);
  try {
    return model_of(nn::llama_config_from_json(text), "");
  } catch (const Error& error) {
    const auto config = nlohmann::json::parse(text, base::bounded_depth("config.json"),
                                              /*allow_exceptions=*/false);
    if (!has_weights || !config.is_object()) throw;
    return {
        .shape = rough_shape(config),
        .notes = {fmt::format("{}; activations are estimated from its sizes alone", error.what())}};
  }
}

}  // namespace

std::int64_t Model::largest_unit() const {
  return units.empty() ? 0 : *std::ranges::max_element(units);
}

Model model_of(const nn::LlamaConfig& c, std::string name) {
  nn::check(c);
  nn::LlamaConfig one_less = c;
  --one_less.layers;
  const std::int64_t parameters = c.parameters(), unit = parameters - one_less.parameters();
  return {.name = std::move(name),
          .parameters = parameters,
          .units = std::vector<std::int64_t>(static_cast<std::size_t>(c.layers), unit),
          .root = parameters - c.layers * unit,
          .shape = {.layers = c.layers,
                    .hidden = c.hidden,
                    .attention = c.heads * c.head_size,
                    .mlp = c.mlp,
                    .mlp_tensors = 3,
                    .vocabulary = c.classes > 0 ? 0 : c.vocabulary},
          .llama = c};
}

Model model_of_size(std::int64_t parameters, std::int64_t layers) {
  if (layers > parameters) {
    throw Error(
        fmt::format("{} parameters cannot be shared out over {} layers", parameters, layers));
  }
  const auto p = static_cast<double>(parameters);
  const char* const said = layers > 0 ? "assumed" : "a guess (--layers sets it)";
  if (layers == 0) layers = std::max(1LL, std::llround(std::cbrt(p / (12 * 128 * 128))));
  const auto square = p / static_cast<double>(12 * layers);
  const std::int64_t hidden = std::max(1LL, std::llround(std::sqrt(square)));
  Model model{
      .name = base::with_thousands(parameters) + " parameters",
      .parameters = parameters,
      .shape = {.layers = layers, .hidden = hidden, .attention = hidden, .mlp = 4 * hidden},
      .notes = {fmt::format(
          "only the number of parameters is known; {} layers of 12 x {}^2 are {}. Activations and "
          "buffers are rough, logits not counted",
          layers, hidden, said)}};
  // Equal but for one element. Only the rest is multiplied: `parameters` could overflow.
  const std::int64_t rest = parameters % layers;
  for (std::int64_t i = 0; i < layers; ++i) {
    model.units.push_back(parameters / layers + rest * (i + 1) / layers - rest * i / layers);
  }
  return model;
}

Model model_of_files(const fs::path& path) {
  fs::path whole = fs::absolute(path).lexically_normal();
  if (!whole.has_filename()) whole = whole.parent_path();
  const bool is_config = whole.filename() == "config.json",
             is_weights = whole.extension() == ".safetensors";
  const fs::path folder = is_config || is_weights ? whole.parent_path() : whole;
  const bool has_weights = is_weights || fs::exists(whole / "model.safetensors") ||
                           fs::exists(whole / "model.safetensors.index.json");
  const fs::path config = folder / "config.json";
  if (!has_weights && !fs::exists(config)) {
    throw Error(fmt::format(
        "{}: no model is there; a folder with config.json or model.safetensors is needed, or one "
        "such file",
        path.string()));
  }
  Model model;
  try {
    if (fs::exists(config)) model = read_config(folder, has_weights);
  } catch (const Error& error) {
    throw Error(fmt::format("{}: {}", config.string(), error.what()));
  }
  const std::int64_t by_config = model.parameters;
  if (has_weights) count_tensors(whole, model);
  if (by_config != 0 && by_config != model.parameters) {
    model.notes.push_back(fmt::format(
        "config.json describes {} parameters, the safetensors hold {}: the latter are planned for",
        base::with_thousands(by_config), base::with_thousands(model.parameters)));
  }
  if (model.shape.layers < 1 || model.shape.hidden < 1) {
    model.shape = model_of_size(model.parameters, std::ssize(model.units)).shape;
    model.notes.push_back("no config.json gives the sizes of layers: activations are a guess");
  }
  model.name = folder.filename();
  return model;
}

std::int64_t layer_elements(const Shape& shape) {
  return 4 * shape.hidden + 4 * shape.attention + shape.mlp_tensors * shape.mlp;
}

}  // namespace zero::plan
