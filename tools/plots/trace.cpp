#include "trace.hpp"

#include <ATen/Context.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>
#include <stdlib.h>
#include <torch/csrc/autograd/profiler_kineto.h>
#include <unistd.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <system_error>

#include <tools/support/json.hpp>
#include <zero/base/error.hpp>

namespace zero::plots {
namespace {

namespace fs = std::filesystem;
namespace profiler = torch::autograd::profiler;
using torch::profiler::impl::ActivityType;
using torch::profiler::impl::ProfilerConfig;
using torch::profiler::impl::ProfilerState;

// Turns times of the steady clock into those of a trace: microseconds after a base, which is
// nanoseconds since 1970.
class TraceClock {
 public:
  explicit TraceClock(std::int64_t base_ns)
      : ahead_(std::chrono::system_clock::now().time_since_epoch() -
               std::chrono::steady_clock::now().time_since_epoch() -
               std::chrono::nanoseconds(base_ns)) {}

  double operator()(dist::Activity::TimePoint time) const {
    return std::chrono::duration<double, std::micro>(time.time_since_epoch() + ahead_).count();
  }

 private:
  std::chrono::nanoseconds ahead_;
};

void add_activities(tools::Json& trace, const std::vector<dist::Activity>& activities) {
  const TraceClock clock(trace.value("baseTimeNanoseconds", std::int64_t{0}));
  tools::Json& events = trace.at("traceEvents");
  const int process = ::getpid();
  for (const dist::Activity& activity : activities) {
    const double begin = clock(activity.begin), end = clock(activity.end);
    tools::Json event = {
        {"name", activity.name}, {"pid", process}, {"tid", process}, {"ts", begin}};
    if (activity.kind != dist::Activity::Kind::kInFlight) {
      event.update({{"ph", "X"}, {"cat", "exposed"}, {"dur", end - begin}});
      events.push_back(std::move(event));
      continue;
    }
    event.update({{"cat", "collective"}, {"id", events.size()}});
    tools::Json last = event;
    event.update({{"ph", "b"}, {"args", {{"bytes", activity.bytes}}}});
    last.update({{"ph", "e"}, {"ts", end}});
    events.push_back(std::move(event));
    events.push_back(std::move(last));
  }
}

// What the profiler recorded. The profiler writes only to a file (here beside `file`), and does not
// report a failure: the file is then unreadable.
tools::Json saved(profiler::ProfilerResult& result, const fs::path& file) {
  fs::path temporary = file;
  temporary.replace_filename(fmt::format(".{}.{}", ::getpid(), file.filename().string()));
  result.save(temporary.string());
  std::error_code ignored;
  try {
    tools::Json trace = tools::read_json(temporary);
    fs::remove(temporary, ignored);
    return trace;
  } catch (const std::exception&) {
    fs::remove(temporary, ignored);
    throw Error(
        fmt::format("the profiler could not write the trace {}: a folder with more space on its "
                    "disk is needed",
                    file.string()));
  }
}

}  // namespace

Trace::Trace(dist::Communicator* communicator, at::Device device)
    : communicator_(communicator), device_(device) {
  // Silences the profiler's messages about its own starts and stops; its levels end at 6.
  ::setenv("KINETO_LOG_LEVEL", "9", /*overwrite=*/0);
  const ProfilerConfig config(ProfilerState::KINETO);
  std::set<ActivityType> activities = {ActivityType::CPU};
  if (device.is_cuda()) activities.insert(ActivityType::CUDA);
  profiler::prepareProfiler(config, activities);
  profiler::enableProfiler(config, activities);
  if (communicator_ != nullptr) communicator_->times().record(&activities_);
}

Trace::~Trace() {
  stop_activities();
  if (recording_) profiler::disableProfiler();
}

void Trace::stop_activities() {
  if (communicator_ != nullptr) communicator_->times().record(nullptr);
}

void Trace::finish(const fs::path& file) {
  if (device_.is_cuda() && at::hasCUDA()) {
    c10::impl::VirtualGuardImpl(device_.type()).synchronizeDevice(device_.index());
  }
  recording_ = false;
  stop_activities();
  const auto result = profiler::disableProfiler();
  base::check_writable(file);
  std::error_code error;
  if (file.has_parent_path()) fs::create_directories(file.parent_path(), error);
  tools::Json trace = saved(*result, file);
  trace.erase("traceName");  // the temporary one
  add_activities(trace, activities_);
  base::write_file(file, trace.dump());
}

}  // namespace zero::plots
