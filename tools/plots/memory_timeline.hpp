#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

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

}  // namespace zero::plots
