#pragma once

#include <string>
#include <vector>

#include <zero/distributed/agreement.hpp>
#include <zero/io/checkpoint_manifest.hpp>
#include <zero/train/strategy.hpp>

/// What saving and loading a checkpoint share on a rank.
namespace zero::io::checkpoint {

/// Elements of a parameter that this rank holds, flat and without autograd.
struct FlatShard {
  at::Tensor values;  ///< undefined if there are none
  std::int64_t begin = 0;
  std::optional<Range> range() const;
};
FlatShard flat_shard_of(const train::ParameterShard& piece);

/// How a tensor axis of more than one rank cuts it.
Cut cut_of(const nn::TensorPlacement& placement);

/// Name, shape, dtype and cut of every parameter of the whole model; steps, states and runs are
/// left empty.
std::vector<SavedParameter> parameters_of(const train::Strategy& strategy);
std::vector<SavedBuffer> buffers_of(train::Strategy& strategy);
/// The buffers' bytes, in the same order.
std::vector<at::Tensor> buffer_tensors(train::Strategy& strategy);

/// Names of tensors in a rank's file.
inline std::string stored_name(const std::string& kind, const std::string& name) {
  return kind + "/" + name;
}
inline constexpr const char* kParameterKind = "parameter";
inline constexpr const char* kBufferKind = "buffer";

/// Throws zero::Error that names the first parameter of which this rank holds
/// (train::Strategy::local_shard()) a value that is infinite or NaN. The loss shows such weights
/// only a step later; until then a save would replace the last good ones by them. Acts on this rank
/// alone.
void check_weights(const train::Strategy& strategy);

}  // namespace zero::io::checkpoint
