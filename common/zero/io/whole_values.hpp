#pragma once

#include <torch/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include <zero/safetensors/spec.hpp>
#include <zero/train/strategy.hpp>

namespace zero::io {

/// Who gets the whole model.
enum class WholeOn : std::uint8_t { kFirstRank, kAllRanks };

/// Brings the whole model to rank 0 or to all ranks, one parameter at a time, and shows them there:
/// parameter `index` of train::StageOfModel::whole(), which is `whole` until `visit` returns. Each
/// rank holds at most what it owns, one unit, and one parameter if the model is split over a tensor
/// or a pipeline axis. Called by all ranks of all axes, between steps; blocks. `visit` must not
/// throw: other ranks would wait. The traffic counts as Purpose::kParameter.
void whole_values(train::Strategy& strategy, WholeOn ranks,
                  const std::function<void(std::size_t index, const at::Tensor& whole)>& visit);

// What this rank has of a model; sends nothing.

/// The same elements, flat and without autograd; undefined if there are none.
train::ParameterShard flat(const train::ParameterShard& shard);

/// The buffers of the model, without autograd.
safetensors::NamedTensors buffers_of(train::Strategy& strategy);

/// Name, dtype and shape of the parameters of the whole model and of the buffers.
std::vector<safetensors::Spec> specs_of(train::Strategy& strategy);

/// Throws zero::Error that names the first parameter of which this rank holds
/// (train::Placement::kept) a value that is infinite or NaN. The loss shows such weights
/// only a step later; until then a save would replace the last good ones by them.
void check_weights(train::Strategy& strategy);

}  // namespace zero::io
