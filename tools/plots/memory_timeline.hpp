#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include <tools/support/json.hpp>
#include <zero/memory/accounting.hpp>

namespace zero::plots {

/// The memory timeline: live bytes by category at every moment of a step, with the step's phases
/// marked.
struct Timeline {
  struct Sample {
    double seconds;  ///< since start_timeline()
    std::array<std::int64_t, memory::kCategories> current;
    std::int64_t total;  ///< as the allocator counts it, not the sum of `current`
  };
  struct Mark {
    double seconds;
    std::string label;
  };
  std::vector<Sample> samples;
  std::vector<Mark> marks;
};

/// Starts recording. Changes of less than `resolution` bytes since the last sample are left out, so
/// that the record stays small; its own memory does not come from LibTorch's allocator.
void start_timeline(std::int64_t resolution = 64 * 1024);

/// Names this moment, for example "forward". Does nothing unless recording.
void mark(std::string label);

/// Stops recording and returns the timeline.
Timeline stop_timeline();

/// One mode of a memory timeline: {"mode", "samples": [{"t", "total", "parameters", "gradients",
/// …}, …], "marks": [{"t", "label"}, …]}. Times are in seconds since the step began, all else in
/// bytes. A sample holds until the next one; a category that holds nothing is left out of it. A
/// mark begins a phase.
tools::Json timeline_of_mode(const std::string& mode, const Timeline& timeline);

/// What plot_memory_timeline.py reads: {"model", "world_size", "parameter_bytes", "modes": `modes`,
/// "run": `run`}, with what timeline_of_mode() and run_metadata() gave.
tools::Json memory_timeline(const std::string& model, int world_size, std::int64_t parameter_bytes,
                            tools::Json modes, tools::Json run);

}  // namespace zero::plots
