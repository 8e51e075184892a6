#pragma once

#include <cstdint>

#include <zero/base/json.hpp>

#include "options.hpp"

namespace zero::ladder {

/// Runs every mode as rank `options.fake_rank` of a fake process group of
/// `options.fake_process_group` ranks, alone in a fresh process each, prints what it held beside
/// the formulas, and writes it to `options.json`. No other rank is started and nothing is sent;
/// batches are those that this rank of a real process group would get.
///
/// @returns the exit code: 0, or 1 where ladder::verdict() found a failure.
/// @throws zero::Error where a launcher started this process as one of several.
int run_fake_process_group(Options& options, base::Json metadata);

/// Bytes that this rank needs at the peak of the largest mode, about.
double needed_by_fake_rank(const Options& options);

}  // namespace zero::ladder
