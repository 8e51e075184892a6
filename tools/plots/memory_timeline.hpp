#pragma once

#include <cstdint>
#include <string>

#include <tools/support/json.hpp>
#include <zero/memory/timeline.hpp>

namespace zero::plots {

/// One mode of a memory timeline: {"mode", "samples": [{"t", "total", "parameters", "gradients",
/// …}, …], "marks": [{"t", "label"}, …]}. Times are in seconds since the step began, all else in
/// bytes. A sample holds until the next one; a category that holds nothing is left out of it. A
/// mark begins a phase.
tools::Json timeline_of_mode(const std::string& mode, const memory::Timeline& timeline);

/// What plot_memory_timeline.py reads: {"model", "world_size", "parameter_bytes", "modes": `modes`,
/// "run": `run`}, with what timeline_of_mode() and run_metadata() gave.
tools::Json memory_timeline(const std::string& model, int world_size, std::int64_t parameter_bytes,
                            tools::Json modes, tools::Json run);

}  // namespace zero::plots
