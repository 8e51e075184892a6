#include "model.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include <zero/base/error.hpp>
#include <zero/base/table.hpp>

namespace zero::plan {
namespace {

constexpr std::int64_t kParametersPerSquare = 12;
constexpr double kHiddenPerLayer = 128;

void add_norm(std::vector<TensorSize>& tensors, const std::string& name, std::int64_t hidden) {
  tensors.push_back({name, hidden, hidden});
}

void add_matrix(std::vector<TensorSize>& tensors, const std::string& name, std::int64_t rows,
                std::int64_t columns) {
  tensors.push_back({name, rows * columns, rows});
}

void add_layer(std::vector<TensorSize>& tensors, const nn::LlamaConfig& c, std::int64_t index) {
  const std::string layer = fmt::format("model.layers.{}.", index);
  const std::int64_t query = c.heads * c.head_size;
  const std::int64_t key = c.kv_heads * c.head_size;
  add_matrix(tensors, layer + "self_attn.q_proj.weight", query, c.hidden);
  add_matrix(tensors, layer + "self_attn.k_proj.weight", key, c.hidden);
  add_matrix(tensors, layer + "self_attn.v_proj.weight", key, c.hidden);
  add_matrix(tensors, layer + "self_attn.o_proj.weight", c.hidden, query);
  add_matrix(tensors, layer + "mlp.gate_proj.weight", c.mlp, c.hidden);
  add_matrix(tensors, layer + "mlp.up_proj.weight", c.mlp, c.hidden);
  add_matrix(tensors, layer + "mlp.down_proj.weight", c.hidden, c.mlp);
  add_norm(tensors, layer + "input_layernorm.weight", c.hidden);
  add_norm(tensors, layer + "post_attention_layernorm.weight", c.hidden);
}

Shape shape_of(const nn::LlamaConfig& c) {
  return {.layers = c.layers,
          .hidden = c.hidden,
          .attention = c.heads * c.head_size,
          .mlp = c.mlp,
          .mlp_tensors = 3,
          .vocabulary = c.classes > 0 ? 0 : c.vocabulary};
}

void check_numbers(std::int64_t parameters, std::int64_t layers) {
  if (parameters < 1 || parameters > nn::kMostParameters) {
    throw Error(fmt::format("the number of parameters is {}, but must be from 1 to {}", parameters,
                            nn::kMostParameters));
  }
  if (layers < 0 || layers > nn::kMostLayers) {
    throw Error(fmt::format("the number of layers is {}, but must be from 1 to {}", layers,
                            nn::kMostLayers));
  }
  if (layers > parameters) {
    throw Error(
        fmt::format("{} parameters cannot be shared out over {} layers", parameters, layers));
  }
}

// Equal but for one element. Only what is left over is multiplied: `parameters` could not be.
std::vector<std::int64_t> equal_units(std::int64_t parameters, std::int64_t layers) {
  const std::int64_t rest = parameters % layers;
  std::vector<std::int64_t> units;
  for (std::int64_t i = 0; i < layers; ++i) {
    units.push_back(parameters / layers + rest * (i + 1) / layers - rest * i / layers);
  }
  return units;
}

}  // namespace

std::int64_t Model::largest_unit() const {
  return units.empty() ? 0 : *std::max_element(units.begin(), units.end());
}

std::vector<TensorSize> llama_tensors(const nn::LlamaConfig& c) {
  std::vector<TensorSize> tensors;
  add_matrix(tensors, "model.embed_tokens.weight", c.vocabulary, c.hidden);
  for (std::int64_t i = 0; i < c.layers; ++i) add_layer(tensors, c, i);
  add_norm(tensors, "model.norm.weight", c.hidden);
  if (c.classes > 0) {
    add_matrix(tensors, "score.weight", c.classes, c.hidden);
  } else if (!c.tied) {
    add_matrix(tensors, "lm_head.weight", c.vocabulary, c.hidden);
  }
  return tensors;
}

Model model_of(const nn::LlamaConfig& config, std::string name) {
  nn::check(config);
  Model model;
  model.name = std::move(name);
  model.parameters = config.parameters();
  model.shape = shape_of(config);
  model.tensors = llama_tensors(config);
  std::vector<TensorSize> layer;
  add_layer(layer, config, 0);
  std::int64_t unit = 0;
  for (const TensorSize& tensor : layer) unit += tensor.elements;
  model.units.assign(static_cast<std::size_t>(config.layers), unit);
  model.root = model.parameters - config.layers * unit;
  return model;
}

Model model_of_size(std::int64_t parameters, std::int64_t layers) {
  check_numbers(parameters, layers);
  Model model;
  const auto p = static_cast<double>(parameters);
  const bool guessed = layers == 0;
  if (guessed) {
    const double cube = p / (kParametersPerSquare * kHiddenPerLayer * kHiddenPerLayer);
    layers = std::max<std::int64_t>(1, std::llround(std::cbrt(cube)));
  }
  const double square = p / static_cast<double>(kParametersPerSquare * layers);
  const std::int64_t hidden = std::max<std::int64_t>(1, std::llround(std::sqrt(square)));
  model.name = base::with_thousands(parameters) + " parameters";
  model.parameters = parameters;
  model.shape = {.layers = layers,
                 .hidden = hidden,
                 .attention = hidden,
                 .mlp = 4 * hidden,
                 .mlp_tensors = 2,
                 .vocabulary = 0};
  model.units = equal_units(parameters, layers);
  model.notes.push_back(fmt::format(
      "only the number of parameters is known; {} layers of 12 x {}^2 are {}. Activations and "
      "buffers are rough, logits not counted",
      layers, hidden, guessed ? "a guess (--layers sets it)" : "assumed"));
  return model;
}

}  // namespace zero::plan
