#include "activations.hpp"

#include <fmt/format.h>

#include <zero/base/error.hpp>

namespace zero::plan {

std::int64_t layer_elements(const Shape& shape) {
  return 4 * shape.hidden + 4 * shape.attention + shape.mlp_tensors * shape.mlp;
}

std::int64_t activation_bytes(const Shape& shape, std::int64_t tokens, std::int64_t element_bytes,
                              Recompute recompute) {
  const std::int64_t layer = layer_elements(shape);
  const std::int64_t kept =
      recompute == Recompute::kNone ? shape.layers * layer : shape.layers * shape.hidden + layer;
  const std::int64_t a_token = (kept + 2 * shape.vocabulary) * element_bytes;
  if (static_cast<double>(a_token) * static_cast<double>(tokens) > 0x1p62) {
    throw Error(fmt::format(
        "{} tokens of {} bytes of activations each are more than can be counted: fewer tokens a "
        "rank are needed",
        tokens, a_token));
  }
  return a_token * tokens;
}

}  // namespace zero::plan
