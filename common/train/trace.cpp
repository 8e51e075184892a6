#include "zero/train/trace.hpp"

#include <fmt/format.h>
#include <stdlib.h>
#include <torch/csrc/autograd/profiler_kineto.h>
#include <unistd.h>

#include <system_error>

#include "zero/error.hpp"
#include "zero/report/json.hpp"

namespace zero::train {
namespace {

namespace fs = std::filesystem;
namespace profiler = torch::autograd::profiler;
using torch::profiler::impl::ActivityType;
using torch::profiler::impl::ProfilerConfig;
using torch::profiler::impl::ProfilerState;

}  // namespace

Trace::Trace() {
  // The profiler tells of its own starts and stops unless it is asked not to; its levels end at 6.
  ::setenv("KINETO_LOG_LEVEL", "9", /*overwrite=*/0);
  const ProfilerConfig config(ProfilerState::KINETO);
  const std::set<ActivityType> activities = {ActivityType::CPU};
  profiler::prepareProfiler(config, activities);
  profiler::enableProfiler(config, activities);
}

Trace::~Trace() {
  if (recording_) profiler::disableProfiler();
}

void Trace::finish(const fs::path& file) {
  recording_ = false;
  const auto result = profiler::disableProfiler();
  report::check_writable(file);
  std::error_code error;
  if (file.has_parent_path()) fs::create_directories(file.parent_path(), error);
  fs::path temporary = file;
  temporary.replace_filename(fmt::format(".{}.{}", ::getpid(), file.filename().string()));
  result->save(temporary.string());
  fs::rename(temporary, file, error);
  if (error) {
    std::error_code ignored;
    fs::remove(temporary, ignored);
    throw Error(
        fmt::format("the trace {} could not be written: {}", file.string(), error.message()));
  }
}

}  // namespace zero::train
