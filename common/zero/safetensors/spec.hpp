#pragma once

#include <c10/util/accumulate.h>
#include <torch/types.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace zero::safetensors {

/// The most scratch memory that reading or writing one tensor takes (1 MiB, in bytes), whatever the
/// tensor's size.
inline constexpr std::int64_t kScratchBytes = std::int64_t{1} << 20;

/// Texts that are saved with the tensors, such as {"format", "pt"}.
using Metadata = std::map<std::string, std::string>;

/// A tensor's name, dtype and shape.
struct Spec {
  std::string name;
  at::ScalarType dtype = at::kFloat;
  std::vector<std::int64_t> shape;

  /// Number of elements: the product of the shape, 1 for a scalar.
  std::int64_t elements() const { return c10::multiply_integers(shape); }
  /// elements() times the size of the dtype.
  std::int64_t bytes() const {
    return elements() * static_cast<std::int64_t>(c10::elementSize(dtype));
  }
};

/// A tensor of a file: its bytes are [begin, end), counted from the end of the header.
struct Entry : Spec {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

/// Positions of tensors by name.
using Index = std::map<std::string, std::size_t>;

/// Tensors with their names, in the order in which they are to be saved.
using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

}  // namespace zero::safetensors
