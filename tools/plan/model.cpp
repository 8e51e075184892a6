#include "model.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include <zero/base/error.hpp>
#include <zero/base/names.hpp>

namespace zero::plan {

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
      .note = fmt::format(
          "only the number of parameters is known; {} layers of 12 x {}^2 are {}. Activations and "
          "buffers are rough, logits not counted",
          layers, hidden, said)};
  // Equal but for one element. Only the rest is multiplied: `parameters` could overflow.
  const std::int64_t rest = parameters % layers;
  for (std::int64_t i = 0; i < layers; ++i) {
    model.units.push_back(parameters / layers + rest * (i + 1) / layers - rest * i / layers);
  }
  return model;
}

std::int64_t layer_elements(const Shape& shape) {
  return 4 * shape.hidden + 4 * shape.attention + shape.mlp_tensors * shape.mlp;
}

}  // namespace zero::plan
