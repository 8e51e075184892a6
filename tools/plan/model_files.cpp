// Models in folders of Hugging Face's: any architecture by the headers of its safetensors, a Llama
// by its config.json.

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>
#include <utility>

#include <zero/base/error.hpp>
#include <zero/base/json_depth.hpp>
#include <zero/base/table.hpp>
#include <zero/io/safetensors.hpp>

#include "model.hpp"

namespace zero::plan {
namespace {

namespace fs = std::filesystem;

struct Files {
  std::optional<fs::path> config_folder;
  std::optional<fs::path> weights;
};

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored);
}

Files find_files(const fs::path& path) {
  std::error_code ignored;
  const bool folder = fs::is_directory(path, ignored);
  const fs::path parent = folder ? path : path.parent_path();
  Files files;
  if (is_there(parent / "config.json")) files.config_folder = parent;
  if (folder) {
    if (is_there(path / "model.safetensors") || is_there(path / "model.safetensors.index.json")) {
      files.weights = path;
    }
  } else if (is_there(path) && path.extension() == ".safetensors") {
    files.weights = path;
  } else if (path.filename() != "config.json") {
    files.config_folder.reset();
  }
  if (!files.config_folder && !files.weights) {
    throw Error(fmt::format(
        "{}: no model is there; a folder with config.json or model.safetensors is needed, or one "
        "such file",
        path.string()));
  }
  return files;
}

// What layers of one kind begin with, and which of them: {"model.layers.", 17}.
using LayerName = std::pair<std::string, std::int64_t>;

// The layer that a tensor belongs to, by the first number in its name: that of
// "model.layers.17.mlp.up_proj.weight". Nothing for "lm_head.weight": it is the root's.
std::optional<LayerName> layer_of(const std::string& tensor) {
  std::size_t begin = 0;
  while (begin < tensor.size()) {
    const std::size_t end = std::min(tensor.find('.', begin), tensor.size());
    std::int64_t number = 0;
    const auto [rest, error] = std::from_chars(&tensor[begin], tensor.data() + end, number);
    if (error == std::errc() && rest == tensor.data() + end && number >= 0) {
      return LayerName{tensor.substr(0, begin), number};
    }
    begin = end + 1;
  }
  return std::nullopt;
}

// The module of a tensor, with "*" for its layer: "model.layers.*.mlp.up_proj".
std::string module_pattern(const std::string& tensor) {
  std::string module = tensor.substr(0, tensor.rfind('.'));
  const std::optional<LayerName> layer = layer_of(tensor);
  if (!layer) return module;
  const std::size_t end = std::min(tensor.find('.', layer->first.size()), module.size());
  return module.replace(layer->first.size(), end - layer->first.size(), "*");
}

// Tensors of one module together, and equal modules of all layers in one row.
std::vector<Module> modules_of(const io::SafetensorsFolder& folder) {
  std::map<std::string, std::pair<std::string, std::int64_t>> modules;
  for (const std::string& name : folder.names()) {
    auto& [pattern, elements] = modules[name.substr(0, name.rfind('.'))];
    pattern = module_pattern(name);
    elements += folder.info(name).elements();
  }
  std::map<std::pair<std::string, std::int64_t>, std::int64_t> rows;
  for (const auto& [module, row] : modules) ++rows[row];
  std::vector<Module> list;
  for (const auto& [row, count] : rows) list.push_back({row.first, count, row.second});
  return list;
}

// A list of layers and the place in it, so that layer 2 comes before layer 10.
void read_sizes(const fs::path& weights, Model& model) {
  const io::SafetensorsFolder folder(weights);
  std::map<LayerName, std::int64_t> layers;
  model.units.clear();
  model.modules = modules_of(folder);
  model.root = model.parameters = 0;
  for (const std::string& name : folder.names()) {
    const std::int64_t elements = folder.info(name).elements();
    if (elements > nn::kMostParameters - model.parameters) {
      throw Error(fmt::format("{}: holds more than {} parameters, the most that is planned for",
                              weights.string(), nn::kMostParameters));
    }
    model.parameters += elements;
    const std::optional<LayerName> layer = layer_of(name);
    (layer ? layers[*layer] : model.root) += elements;
  }
  // There is nothing to gather of a layer without elements.
  std::erase_if(layers, [](const auto& layer) { return layer.second == 0; });
  for (const auto& [name, elements] : layers) model.units.push_back(elements);
  if (model.parameters == 0) {
    throw Error(fmt::format("{}: holds no parameters", weights.string()));
  }
  if (std::ssize(model.units) > nn::kMostLayers) {
    throw Error(fmt::format("{}: its tensors lie in {} layers, at most {} are planned for",
                            weights.string(), model.units.size(), nn::kMostLayers));
  }
}

// What other architectures call the sizes of a transformer; 0 where a file says nothing, or has a
// list with a size for each layer.
Shape rough_shape(const nlohmann::json& config) {
  const auto size = [&](std::initializer_list<const char*> keys,
                        std::int64_t most = nn::kLargestSize) -> std::int64_t {
    for (const char* key : keys) {
      const auto found = config.find(key);
      if (found == config.end() || found->is_null() || found->is_structured()) continue;
      return nn::size_from_json(config, key, /*least=*/0, most);
    }
    return 0;
  };
  Shape shape;
  shape.layers = size({"num_hidden_layers", "n_layer", "num_layers"}, nn::kMostLayers);
  shape.hidden = size({"hidden_size", "n_embd", "d_model"});
  shape.attention = shape.hidden;
  shape.mlp = size({"intermediate_size", "n_inner", "ffn_dim", "d_ff"});
  if (shape.mlp == 0) shape.mlp = 4 * shape.hidden;
  shape.mlp_tensors = 3;
  shape.vocabulary = size({"vocab_size"});
  // Nothing follows from these here, but where one size is nonsense the others are not believed.
  for (const char* key : {"num_attention_heads", "num_key_value_heads", "head_dim"}) size({key});
  return shape;
}

// A Llama, or the sizes of another transformer where the weights say what it consists of.
Model described_by(const std::string& text, const std::string& where, bool sizes_are_known) {
  try {
    return model_of(nn::llama_config_from_json(text), {});
  } catch (const Error& error) {
    const auto config = nlohmann::json::parse(text, base::bounded_depth("config.json"),
                                              /*allow_exceptions=*/false);
    if (!sizes_are_known || !config.is_object()) throw;
    Model model;
    model.shape = rough_shape(config);
    model.notes.push_back(
        fmt::format("{}: {}; activations are estimated from its sizes alone", where, error.what()));
    return model;
  }
}

Model from_config(const fs::path& folder, bool sizes_are_known) {
  const std::string text = nn::read_config_text(folder);
  const std::string where = (folder / "config.json").string();
  try {
    return described_by(text, where, sizes_are_known);
  } catch (const Error& error) {
    throw Error(fmt::format("{}: {}", where, error.what()));
  }
}

}  // namespace

Model model_of_files(const fs::path& path) {
  const Files files = find_files(path);
  Model model;
  if (files.config_folder) model = from_config(*files.config_folder, files.weights.has_value());
  const std::int64_t by_config = model.parameters;
  if (files.weights) read_sizes(*files.weights, model);
  if (by_config != 0 && by_config != model.parameters) {
    model.notes.push_back(fmt::format(
        "config.json describes {} parameters, the safetensors hold {}: the latter are planned for",
        base::with_thousands(by_config), base::with_thousands(model.parameters)));
  }
  if (model.shape.layers < 1 || model.shape.hidden < 1) {
    Model guess = model_of_size(model.parameters, static_cast<std::int64_t>(model.units.size()));
    model.shape = guess.shape;
    model.notes.push_back("no config.json gives the sizes of layers: activations are a guess");
  }
  if (model.units.empty()) model.units = {model.root}, model.root = 0;
  const fs::path whole = fs::absolute(path).lexically_normal();
  const fs::path folder = is_there(whole) ? whole.parent_path() : whole;
  model.name = (folder.has_filename() ? folder : folder.parent_path()).filename().string();
  return model;
}

}  // namespace zero::plan
