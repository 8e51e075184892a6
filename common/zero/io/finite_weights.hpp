#pragma once

#include <zero/train/strategy.hpp>

namespace zero::io {

/// Throws zero::Error that names the first parameter of which this rank holds
/// (train::Strategy::local_shard()) a value that is infinite or NaN. The loss tells of such weights
/// a step later; until then a save would put them in the place of the last good ones. Acts on this
/// rank alone.
void check_weights(const train::Strategy& strategy);

}  // namespace zero::io
