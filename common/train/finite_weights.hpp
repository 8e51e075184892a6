#pragma once

#include <string>

#include "zero/train/strategy.hpp"

namespace zero::train {

/// Throws zero::Error that names the first parameter of which this rank holds (Strategy::stored())
/// a value that is infinite or NaN. The loss tells of such weights a step later; until then a save
/// would put them in the place of the last good ones. Acts on this rank alone.
void check_weights(const Strategy& strategy);

/// The same on all ranks, which must all call it: each throws if any of them would.
void check_weights_of_all_ranks(Strategy& strategy, const std::string& what);

}  // namespace zero::train
