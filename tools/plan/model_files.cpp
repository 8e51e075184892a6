// Models in folders of Hugging Face's: any architecture by the headers of its safetensors, a Llama
// by its config.json.

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <nlohmann/json.hpp>

#include <zero/base/error.hpp>
#include <zero/base/json_depth.hpp>
#include <zero/base/table.hpp>
#include <zero/safetensors/safetensors.hpp>

#include "model.hpp"

namespace zero::plan {
namespace {

namespace fs = std::filesystem;

bool is_file(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored);
}

// A layer by the first number in a tensor's name: {"model.layers.", 17}.
using Layer = std::pair<std::string, std::int64_t>;

// The layer of "model.layers.17.mlp.up_proj.weight", whose number becomes a "*". Nothing for
// "lm_head.weight": it is the root's.
std::optional<Layer> take_layer(std::string& tensor) {
  for (std::size_t begin = 0, end = 0; begin < tensor.size(); begin = end + 1) {
    end = std::min(tensor.find('.', begin), tensor.size());
    std::int64_t number = 0;
    const auto [rest, error] = std::from_chars(&tensor[begin], &tensor[end], number);
    if (error != std::errc() || rest != &tensor[end] || number < 0) continue;
    tensor.replace(begin, end - begin, "*");
    return Layer{tensor.substr(0, begin), number};
  }
  return std::nullopt;
}

// Units are in the order of layers, so that layer 2 comes before layer 10.
void read_sizes(const fs::path& weights, Model& model) {
  const safetensors::Folder folder(weights);
  std::map<Layer, std::int64_t> layers;
  std::map<std::string, Module> modules;
  model.root = model.parameters = 0;
  for (const std::string& name : folder.names()) {
    const std::int64_t elements = folder.info(name).elements();
    if (elements > nn::kMostParameters - model.parameters) {
      throw Error(fmt::format("{}: holds more than {} parameters, the most that is planned for",
                              weights.string(), nn::kMostParameters));
    }
    std::string pattern = name;
    const std::optional<Layer> layer = take_layer(pattern);
    Module& module = modules[name.substr(0, name.rfind('.'))];
    module.name = pattern.substr(0, pattern.rfind('.'));
    module.parameters += elements;
    model.parameters += elements;
    (layer ? layers[*layer] : model.root) += elements;
  }
  // There is nothing to gather of a layer without elements.
  model.units.clear();
  for (const auto& [layer, elements] : layers) {
    if (elements > 0) model.units.push_back(elements);
  }
  std::map<std::pair<std::string, std::int64_t>, std::int64_t> counts;
  for (const auto& [name, module] : modules) ++counts[{module.name, module.parameters}];
  model.modules.clear();
  for (const auto& [row, count] : counts) model.modules.push_back({row.first, count, row.second});
  if (model.parameters == 0) {
    throw Error(fmt::format("{}: holds no parameters", weights.string()));
  }
  if (std::ssize(model.units) > nn::kMostLayers) {
    throw Error(fmt::format("{}: its tensors lie in {} layers, at most {} are planned for",
                            weights.string(), model.units.size(), nn::kMostLayers));
  }
}

// What other architectures call the sizes of a transformer; 0 if a file says nothing, or has a
// list with a size for each layer.
Shape rough_shape(const nlohmann::json& config) {
  const auto size = [&](std::initializer_list<const char*> keys, std::int64_t most) {
    for (const char* key : keys) {
      const auto found = config.find(key);
      if (found == config.end() || found->is_null() || found->is_structured()) continue;
      return nn::size_from_json(config, key, /*least=*/0, most);
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

// A Llama; or, if there are weights that say what it consists of, the sizes of another transformer.
Model read_config(const fs::path& folder, bool has_weights) {
  const std::string text = nn::read_config_text(folder);
  try {
    return model_of(nn::llama_config_from_json(text), {});
  } catch (const Error& error) {
    const auto config = nlohmann::json::parse(text, base::bounded_depth("config.json"),
                                              /*allow_exceptions=*/false);
    if (!has_weights || !config.is_object()) throw;
    Model model;
    model.shape = rough_shape(config);
    model.notes.push_back(
        fmt::format("{}; activations are estimated from its sizes alone", error.what()));
    return model;
  }
}

}  // namespace

Model model_of_files(const fs::path& path) {
  std::error_code ignored;
  const bool is_folder = fs::is_directory(path, ignored);
  const fs::path folder = is_folder ? path : path.parent_path();
  const bool has_weights = is_folder ? is_file(path / "model.safetensors") ||
                                           is_file(path / "model.safetensors.index.json")
                                     : is_file(path) && path.extension() == ".safetensors";
  const bool has_config = is_file(folder / "config.json") &&
                          (is_folder || has_weights || path.filename() == "config.json");
  if (!has_config && !has_weights) {
    throw Error(fmt::format(
        "{}: no model is there; a folder with config.json or model.safetensors is needed, or one "
        "such file",
        path.string()));
  }
  Model model;
  try {
    if (has_config) model = read_config(folder, has_weights);
  } catch (const Error& error) {
    throw Error(fmt::format("{}: {}", (folder / "config.json").string(), error.what()));
  }
  const std::int64_t by_config = model.parameters;
  if (has_weights) read_sizes(path, model);
  if (by_config != 0 && by_config != model.parameters) {
    model.notes.push_back(fmt::format(
        "config.json describes {} parameters, the safetensors hold {}: the latter are planned for",
        base::with_thousands(by_config), base::with_thousands(model.parameters)));
  }
  if (model.shape.layers < 1 || model.shape.hidden < 1) {
    model.shape = model_of_size(model.parameters, std::ssize(model.units)).shape;
    model.notes.push_back("no config.json gives the sizes of layers: activations are a guess");
  }
  if (model.units.empty()) model.units = {model.root}, model.root = 0;
  const fs::path whole = fs::absolute(is_folder ? path / "" : path).lexically_normal();
  model.name = whole.parent_path().filename().string();
  return model;
}

}  // namespace zero::plan
