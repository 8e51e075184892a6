#pragma once

#include <vector>

#include <zero/safetensors/spec.hpp>
#include <zero/train/strategy.hpp>

/// What this rank has of a model. Nothing here communicates.
namespace zero::io {

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
