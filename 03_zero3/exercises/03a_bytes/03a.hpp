#pragma once

#include <torch/types.h>

namespace exercise_03a {

/// What an answer consists of. `parameter` spans its storage. It may be a leaf that autograd has
/// saved for backward; it keeps its shape, its identity and its version.
struct Answer {
  /// Gives the bytes of `parameter` back to the allocator. Called when it has its bytes.
  void (*release_bytes)(const at::Tensor& parameter);
  /// Allocates them again and fills them with `values`, a tensor of the same shape. What autograd
  /// has saved of `parameter` sees these bytes. Called after release_bytes().
  void (*restore_bytes)(const at::Tensor& parameter, const at::Tensor& values);
};

}  // namespace exercise_03a
