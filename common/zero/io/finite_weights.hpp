#pragma once

#include <zero/train/strategy.hpp>

namespace zero::io {

/// Throws zero::Error that names the first parameter of which this rank holds
/// (train::Strategy::local_shard()) a value that is infinite or NaN. The loss shows such weights
/// only a step later; until then a save would replace the last good ones by them. Acts on this rank
/// alone.
void check_weights(const train::Strategy& strategy);

}  // namespace zero::io
