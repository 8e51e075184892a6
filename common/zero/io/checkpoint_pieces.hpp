#pragma once

#include <torch/types.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <zero/nn/tensor_placement.hpp>
#include <zero/safetensors/file.hpp>

/// Which elements of a model the files of a checkpoint hold. Nothing here communicates.
namespace zero::io::checkpoint {

/// Consecutive elements of a flattened tensor or, if a tensor axis cuts it (nn::TensorPlacement),
/// of a flattened part.
struct Piece {
  std::int64_t begin = 0;
  std::int64_t size = 0;
  int dim = 0;   ///< it is cut along
  int part = 0;  ///< of `parts` equal ones
  int parts = 1;
  std::size_t file = 0;  ///< which has it
};

/// `size` elements from `begin` on of what this rank has of a tensor that is placed so.
Piece piece_of(const nn::TensorPlacement& placement, std::int64_t begin, std::int64_t size);

/// Elements that follow each other in a piece of a file and in the whole flattened tensor, or in
/// another piece.
struct Run {
  std::size_t file = 0;
  std::int64_t from = 0;  ///< in the piece of the file
  std::int64_t to = 0;    ///< in the other
  std::int64_t size = 0;
  bool operator==(const Run&) const = default;
};

/// The elements of pieces of a tensor of this shape, in the order of the whole.
std::vector<Run> runs_of(at::IntArrayRef shape, const std::vector<Piece>& pieces);

/// Throws zero::Error, with the name of the tensor, unless the pieces have every element once.
void check_complete(const std::string& name, at::IntArrayRef shape,
                    const std::vector<Piece>& pieces);

/// What to copy from `saved`, the runs of complete pieces, to have `wanted`, those of one piece.
std::vector<Run> copies(const std::vector<Run>& saved, const std::vector<Run>& wanted);

// A file has one piece at most of a parameter NAME, flat, as "parameter/NAME", and the states of
// its elements as "STATE/NAME"; each with a text of the same name in the metadata.

inline constexpr const char* kParameterKind = "parameter";
inline constexpr const char* kBufferKind = "buffer";

/// The name of a tensor in a file.
inline std::string stored_name(const std::string& kind, const std::string& name) {
  return kind + "/" + name;
}

/// The text in the metadata: shape of the whole, where the piece lies, and how often the optimizer
/// has updated it.
std::string to_text(at::IntArrayRef shape, const Piece& piece, std::int64_t steps);

/// What all files together say of a tensor.
struct SavedTensor {
  std::vector<std::int64_t> shape = {};  ///< of the whole
  at::ScalarType dtype = at::kFloat;
  std::int64_t steps = 0;
  std::vector<Piece> pieces = {};  ///< together every element once
};

/// A parameter, as "parameter", and its states by name; all of one shape.
using SavedTensors = std::map<std::string, SavedTensor>;

/// By name of the parameter. @throws zero::Error that names a file or a tensor, if
/// metadata do not fit a tensor, or if pieces do not fit each other, leave a gap or overlap.
std::map<std::string, SavedTensors> tensors_in(const std::vector<safetensors::File>& files);

}  // namespace zero::io::checkpoint
