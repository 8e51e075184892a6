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

Shape shape_of(const nn::LlamaConfig& c) {
  return {.layers = c.layers,
          .hidden = c.hidden,
          .attention = c.heads * c.head_size,
          .mlp = c.mlp,
          .mlp_tensors = 3,
          .vocabulary = c.classes > 0 ? 0 : c.vocabulary};
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

std::vector<Module> modules_of(const nn::LlamaConfig& c) {
  const std::int64_t queries = c.heads * c.head_size, keys = c.kv_heads * c.head_size;
  std::vector<Module> modules = {{"model.embed_tokens", 1, c.vocabulary * c.hidden}};
  const auto layers = [&](const std::string& name, std::int64_t parameters) {
    modules.push_back({"model.layers.*." + name, c.layers, parameters});
  };
  layers("self_attn.q_proj", queries * c.hidden);
  layers("self_attn.k_proj", keys * c.hidden);
  layers("self_attn.v_proj", keys * c.hidden);
  layers("self_attn.o_proj", c.hidden * queries);
  layers("mlp.gate_proj", c.mlp * c.hidden);
  layers("mlp.up_proj", c.mlp * c.hidden);
  layers("mlp.down_proj", c.hidden * c.mlp);
  layers("input_layernorm", c.hidden);
  layers("post_attention_layernorm", c.hidden);
  modules.push_back({"model.norm", 1, c.hidden});
  if (c.classes > 0) {
    modules.push_back({"score", 1, c.classes * c.hidden});
  } else if (!c.tied) {
    modules.push_back({"lm_head", 1, c.vocabulary * c.hidden});
  }
  return modules;
}

}  // namespace

std::int64_t Model::largest_unit() const {
  return units.empty() ? 0 : *std::max_element(units.begin(), units.end());
}

std::int64_t layer_elements(const Shape& shape) {
  return 4 * shape.hidden + 4 * shape.attention + shape.mlp_tensors * shape.mlp;
}

std::int64_t activation_bytes(const Shape& shape, std::int64_t tokens, std::int64_t element_bytes,
                              Recompute recompute) {
  const std::int64_t layer = layer_elements(shape);
  const std::int64_t kept =
      recompute == Recompute::kNone ? shape.layers * layer : shape.layers * shape.hidden + layer;
  return token_bytes(kept + 2 * shape.vocabulary, tokens, element_bytes);
}

std::int64_t token_bytes(std::int64_t elements, std::int64_t tokens, std::int64_t element_bytes) {
  const std::int64_t a_token = elements * element_bytes;
  if (static_cast<double>(a_token) * static_cast<double>(tokens) > 0x1p60) {
    throw Error(fmt::format(
        "{} tokens of {} bytes of activations each are more than can be counted: fewer tokens a "
        "rank are needed",
        tokens, a_token));
  }
  return a_token * tokens;
}

Model model_of(const nn::LlamaConfig& config, std::string name) {
  nn::check(config);
  Model model;
  model.name = std::move(name);
  model.parameters = config.parameters();
  model.modules = modules_of(config);
  model.shape = shape_of(config);
  model.llama = config;
  nn::LlamaConfig one_less = config;
  --one_less.layers;
  const std::int64_t unit = config.parameters() - one_less.parameters();
  model.units.assign(static_cast<std::size_t>(config.layers), unit);
  model.root = model.parameters - config.layers * unit;
  return model;
}

Model model_of_size(std::int64_t parameters, std::int64_t layers) {
  if (layers > parameters) {
    throw Error(
        fmt::format("{} parameters cannot be shared out over {} layers", parameters, layers));
  }
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
