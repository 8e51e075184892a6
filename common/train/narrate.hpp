#pragma once

#include <string>

#include "zero/data/batch.hpp"
#include "zero/train/strategy.hpp"

namespace zero::train {

/// Prints `title`, and below it the `line` of every rank in rank order; rank 0 does the printing.
/// Called by all ranks.
void print_by_rank(dist::Communicator& communicator, const std::string& title,
                   const std::string& line);

/// Trains two steps on `batch`, this rank's, and prints after every phase who holds what: a letter
/// for each element that is held, a dot for one that is not. For models small enough to be
/// printed. Called by all ranks.
void narrate(Strategy& strategy, const data::Batch& batch);

}  // namespace zero::train
