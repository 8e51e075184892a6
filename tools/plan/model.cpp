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

std::vector<Module> modules_of(const nn::LlamaConfig& c) {
  const std::int64_t queries = c.heads * c.head_size, keys = c.kv_heads * c.head_size;
  std::vector<Module> modules = {{"model.embed_tokens", 1, c.vocabulary * c.hidden}};
  const std::pair<const char*, std::int64_t> of_layer[] = {
      {"self_attn.q_proj", queries * c.hidden}, {"self_attn.k_proj", keys * c.hidden},
      {"self_attn.v_proj", keys * c.hidden},    {"self_attn.o_proj", c.hidden * queries},
      {"mlp.gate_proj", c.mlp * c.hidden},      {"mlp.up_proj", c.mlp * c.hidden},
      {"mlp.down_proj", c.hidden * c.mlp},      {"input_layernorm", c.hidden},
      {"post_attention_layernorm", c.hidden}};
  for (const auto& [name, parameters] : of_layer) {
    modules.push_back({std::string("model.layers.*.") + name, c.layers, parameters});
  }
  modules.push_back({"model.norm", 1, c.hidden});
  if (c.classes > 0) modules.push_back({"score", 1, c.classes * c.hidden});
  if (c.classes == 0 && !c.tied) modules.push_back({"lm_head", 1, c.vocabulary * c.hidden});
  return modules;
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
          .modules = modules_of(c),
          .shape = {.layers = c.layers,
                    .hidden = c.hidden,
                    .attention = c.heads * c.head_size,
                    .mlp = c.mlp,
                    .mlp_tensors = 3,
                    .vocabulary = c.classes > 0 ? 0 : c.vocabulary},
          .llama = c,
          .notes = {}};
}

Model model_of_size(std::int64_t parameters, std::int64_t layers) {
  if (layers > parameters) {
    throw Error(
        fmt::format("{} parameters cannot be shared out over {} layers", parameters, layers));
  }
  const auto p = static_cast<double>(parameters);
  const bool guessed = layers == 0;
  if (guessed) {
    const double cube = p / (kParametersPerSquare * kHiddenPerLayer * kHiddenPerLayer);
    layers = std::max<std::int64_t>(1, std::llround(std::cbrt(cube)));
  }
  const double square = p / static_cast<double>(kParametersPerSquare * layers);
  const std::int64_t hidden = std::max<std::int64_t>(1, std::llround(std::sqrt(square)));
  Model model;
  model.name = base::with_thousands(parameters) + " parameters";
  model.parameters = parameters;
  model.shape = {.layers = layers, .hidden = hidden, .attention = hidden, .mlp = 4 * hidden};
  // Equal but for one element. Only the rest is multiplied: `parameters` could overflow.
  const std::int64_t rest = parameters % layers;
  for (std::int64_t i = 0; i < layers; ++i) {
    model.units.push_back(parameters / layers + rest * (i + 1) / layers - rest * i / layers);
  }
  model.notes.push_back(fmt::format(
      "only the number of parameters is known; {} layers of 12 x {}^2 are {}. Activations and "
      "buffers are rough, logits not counted",
      layers, hidden, guessed ? "a guess (--layers sets it)" : "assumed"));
  return model;
}

std::int64_t layer_elements(const Shape& shape) {
  return 4 * shape.hidden + 4 * shape.attention + shape.mlp_tensors * shape.mlp;
}

std::int64_t activation_bytes(const Shape& shape, std::int64_t tokens, std::int64_t element_bytes,
                              bool recompute) {
  const std::int64_t layer = layer_elements(shape);
  const std::int64_t kept = recompute ? shape.layers * shape.hidden + layer : shape.layers * layer;
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

}  // namespace zero::plan
