#pragma once

#include "options.hpp"

namespace zero::ladder {

/// Fills in the model if neither model nor weights were named, and says so if it is not the usual
/// one; zero::Error if what was named does not fit into the memory that is free on this machine, or
/// nothing does.
void choose_model(Options& options);

}  // namespace zero::ladder
