#pragma once

#include <torch/types.h>

#include <map>
#include <set>
#include <vector>

namespace exercise_01e {

/// Bytes of one rank by category.
struct Bytes {
  std::int64_t parameters = 0;
  std::int64_t gradients = 0;
  std::int64_t optimizer = 0;
};

/// What an answer consists of.
struct Answer {
  /// Bytes of memory that these tensors keep from being freed. A gradient is parameter.grad(),
  /// undefined where there is none. `moments` are those that the rank has.
  Bytes (*held_bytes)(const std::vector<at::Tensor>& parameters,
                      const std::vector<at::Tensor>& moments);

  /// What a rank of ZeRO-1 holds after a step with AdamW, all in float32, by formula. `parameters`
  /// is the number of elements of the model, `trainable` of those that are trained, `owned` of
  /// those that are trained and that this rank owns.
  Bytes (*formula_bytes)(std::int64_t parameters, std::int64_t trainable, std::int64_t owned);
};

}  // namespace exercise_01e
