#include "memory_timeline.hpp"

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <mutex>
#include <utility>

namespace zero::plots {

namespace {

using Clock = std::chrono::steady_clock;

std::atomic<bool> recording = false;
std::mutex timeline_mutex;  // guards everything below
Timeline recorded;
Clock::time_point start;
std::int64_t resolution = 0;

double seconds_since_start() { return std::chrono::duration<double>(Clock::now() - start).count(); }

bool far_from_last(const memory::Snapshot& counts) {
  if (recorded.samples.empty()) return true;
  const auto& last = recorded.samples.back().current;
  std::int64_t change = 0;
  for (std::size_t i = 0; i < memory::kCategories; ++i)
    change += std::abs(counts.current[i] - last[i]);
  return change >= resolution;
}

void record(const memory::Snapshot& counts) {
  const std::lock_guard lock(timeline_mutex);
  if (!far_from_last(counts)) return;
  recorded.samples.push_back({seconds_since_start(), counts.current, counts.total});
}

}  // namespace

void start_timeline(std::int64_t new_resolution) {
  const memory::Snapshot now = memory::snapshot();
  {
    const std::lock_guard lock(timeline_mutex);
    recorded = {};
    start = Clock::now();
    resolution = new_resolution;
    recording = true;
  }
  record(now);
  memory::on_change(&record);
}

void mark(std::string label) {
  if (!recording) return;
  const std::lock_guard lock(timeline_mutex);
  recorded.marks.push_back({seconds_since_start(), std::move(label)});
}

Timeline stop_timeline() {
  memory::on_change(nullptr);
  const memory::Snapshot now = memory::snapshot();
  const std::lock_guard lock(timeline_mutex);
  // The timeline ends when it is stopped, not with the last change.
  if (recording) recorded.samples.push_back({seconds_since_start(), now.current, now.total});
  recording = false;
  return std::exchange(recorded, {});
}

}  // namespace zero::plots
