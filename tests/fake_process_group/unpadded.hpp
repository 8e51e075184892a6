#pragma once

#include <tests/support/modes.hpp>
#include <zero/nn/llama.hpp>

namespace zero::testing {

/// Every unit of every part is a multiple of 4 x 64 elements, so that no shard of up to four has
/// padding, which the planner does not know.
inline nn::LlamaConfig unpadded(bool tied) {
  return {.vocabulary = 256,
          .hidden = 256,
          .layers = 5,
          .heads = 8,
          .kv_heads = 8,
          .head_size = 32,
          .mlp = 256,
          .tied = tied};
}

}  // namespace zero::testing
