#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include <zero/io/checkpoint_info.hpp>

/// The contents of a checkpoint's manifest. Nothing here touches a file or another rank.
namespace zero::io::checkpoint {

inline constexpr int kVersion = 1;
inline constexpr int kCutVersion = 2;  ///< of a checkpoint in which a tensor axis cuts a parameter
inline constexpr const char* kManifestFile = "manifest.json";

/// Elements [begin, begin + size) of a flattened parameter, or of a flattened part of one that a
/// tensor axis cuts.
struct Range {
  std::int64_t begin = 0;
  std::int64_t size = 0;
  bool operator==(const Range&) const = default;
};

/// The elements that two ranges have in common; size 0 if there are none.
Range overlap(const Range& a, const Range& b);

/// What one rank holds of a parameter.
struct Holding {
  std::optional<Range> piece;                 ///< the elements that it updates
  std::optional<Range> stored;                ///< the elements that it keeps between steps
  std::int64_t steps = 0;                     ///< updates of the piece
  std::map<std::string, std::string> states;  ///< the piece's states by name, and their dtypes
  int part = 0;                               ///< of a parameter that is cut
};

/// A range and the rank whose file holds it.
struct RankRange {
  int rank = 0;
  Range range;
  int part = 0;
  bool operator==(const RankRange&) const = default;
};

/// How a parameter is cut into parts (nn::TensorPlacement).
struct Cut {
  int dim = -1;  ///< -1: it is not
  int parts = 1;
  bool operator==(const Cut&) const = default;
};

/// One parameter of a checkpoint. dtypes are named as in LibTorch ("Float", "BFloat16").
struct SavedParameter {
  std::string name;
  std::vector<std::int64_t> shape;  ///< of the whole
  std::string dtype;
  std::int64_t steps = 0;
  std::map<std::string, std::string> states;  ///< by name, and their dtypes
  std::vector<RankRange> runs;                ///< by part, in order; together every element once
  Cut cut = {};

  std::int64_t elements() const;
};

struct SavedBuffer {
  std::string name;
  std::vector<std::int64_t> shape;
  std::string dtype;
  bool operator==(const SavedBuffer&) const = default;
};

struct SavedFile {
  int rank = 0;
  std::string name;
  std::int64_t bytes = 0;
  std::string sha256;
};

struct Manifest {
  std::string folder;   ///< of the files, beside the manifest
  CheckpointInfo info;  ///< world_size and optimizer filled in
  std::vector<SavedParameter> parameters;
  std::vector<SavedBuffer> buffers;
  std::vector<SavedFile> files;
};

/// Calls function(begin in `a`, begin in `b`, size) for all elements that two ranges of a parameter
/// of shape `shape` have in common, in pieces that lie together in both. `a` is of part `part_a` of
/// the parameter as `cut_a` cuts it, `b` likewise.
void for_each_common(const std::vector<std::int64_t>& shape, const Cut& cut_a, int part_a,
                     const Range& a, const Cut& cut_b, int part_b, const Range& b,
                     const std::function<void(std::int64_t, std::int64_t, std::int64_t)>& function);

/// Assigns the ranges of a parameter to the ranks that write them, given what every rank holds:
/// pieces, or, if no rank updates it, what is stored; the lowest rank writes what several hold.
/// Fills steps, states and runs of `parameter`, which has its name, shape and cut.
/// @throws zero::Error if elements are missing, or writing ranks differ in steps or states.
void assign_runs(SavedParameter& parameter, const std::vector<Holding>& holdings);

/// Throws zero::Error with the first difference between the models. `convert`: dtypes may differ.
void check_same_model(const Manifest& saved, const std::vector<SavedParameter>& parameters,
                      const std::vector<SavedBuffer>& buffers, bool convert);

/// Throws zero::Error for impossible steps and positions.
void check_info(const CheckpointInfo& info);

/// Throws zero::Error if a number is out of range, or the manifest contradicts itself: runs that
/// leave a gap or do not match a parameter's shape, files that do not fit the world size, duplicate
/// names.
void check_manifest(const Manifest& manifest);

/// One rank's holdings as text, for the others.
std::string to_text(const std::vector<Holding>& holdings);
std::vector<Holding> holdings_from(const std::string& text);

/// The manifest's file, which ends with a checksum of itself.
std::string to_text(const Manifest& manifest);
/// The inverse. @throws zero::Error, beginning with `path`, for a text that to_text() did not write
/// to the last byte, of another version, or that check_manifest() refuses.
Manifest manifest_from(const std::string& text, const std::string& path);

}  // namespace zero::io::checkpoint
