#pragma once

#include <optional>
#include <string>
#include <vector>

#include <zero/distributed/agreement.hpp>
#include <zero/io/checkpoint_manifest.hpp>
#include <zero/safetensors/spec.hpp>
#include <zero/train/strategy.hpp>

/// What saving and loading a checkpoint share on a rank.
namespace zero::io::checkpoint {

/// The same elements, flat and without autograd; undefined if there are none.
train::ParameterShard flat(const train::ParameterShard& shard);
/// Where a flat shard lies in its parameter.
std::optional<Range> range_of(const train::ParameterShard& shard);

/// How a tensor axis of more than one rank cuts it.
Cut cut_of(const nn::TensorPlacement& placement);

/// Name, shape, dtype and cut of every parameter of the whole model; steps, states and runs are
/// left empty.
std::vector<SavedParameter> parameters_of(const train::Strategy& strategy);
/// The buffers, without autograd. A checkpoint's manifest has name, shape and dtype of each.
safetensors::NamedTensors buffers_of(train::Strategy& strategy);
std::vector<SavedBuffer> saved_buffers(const safetensors::NamedTensors& buffers);

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
void check_weights(train::Strategy& strategy);

}  // namespace zero::io::checkpoint
