#pragma once

#include "options.hpp"

namespace zero::ladder {

/// Throws zero::Error if the run would write over something that it reads, or in two ways to one
/// place: figures over a file of --data, a model into the folder of --weights, --json and
/// --memory-timeline into one file. Only --checkpoint and --resume may name the same folder.
/// Compares resolved paths only, so all ranks decide alike. `options.world_size` must be that of
/// the run: each rank has traces of its own. The process that `writes` also throws if it cannot
/// write to one of them.
void check_output_paths(const Options& options, bool writes);

}  // namespace zero::ladder
