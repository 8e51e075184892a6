#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <utility>

#include <zero/distributed/work.hpp>

namespace zero::dist {

using Clock = std::chrono::steady_clock;

std::string Call::text() const {
  return fmt::format("{} #{} ({}, {} bytes){}{}", name(operation), sequence, name(purpose), bytes,
                     public_call.empty() ? "" : fmt::format(" in {}", public_call),
                     step < 0 ? "" : fmt::format(" in step {}", step));
}

std::string Call::title() const { return fmt::format("{} {}", name(operation), name(purpose)); }

Work& Work::operator=(Work&& other) noexcept {
  std::swap(work_, other.work_);
  return *this;
}

Work::~Work() {
  if (work_ == nullptr || std::uncaught_exceptions() > 0) return;
  std::fputs("zero: a collective was started and never waited on\n", stderr);
  std::terminate();
}

void Work::wait() {
  if (work_ == nullptr) return;
  // Taken out first: after an error the handle is empty.
  const std::unique_ptr<Pending> work = std::move(work_);
  work->wait();
}

void Work::wait_output() {
  if (work_ == nullptr) return;
  std::unique_ptr<Pending> work = std::move(work_);  // empty after an error, as in wait()
  if (work->wait_output()) work_ = std::move(work);
}

/// Notes how long the operation was in flight and how long the thread waited.
class WorkTimes::TimedWork final : public Work::Pending {
 public:
  TimedWork(std::unique_ptr<Work::Pending> work, WorkTimes& times, const Call& call,
            Clock::time_point started)
      : work_(std::move(work)), times_(times), call_(call), started_(started) {}

  void wait() override {
    const auto waited_from = Clock::now();
    work_->wait();
    note(waited_from);
  }

  bool wait_output() override {
    const auto waited_from = Clock::now();
    const bool more = work_->wait_output();
    note(waited_from);
    return more;
  }

 private:
  void note(Clock::time_point waited_from) {
    times_.note_exposed("wait", &call_, waited_from);
    if (!std::exchange(complete_, true)) times_.note_complete(call_, started_);
  }

  std::unique_ptr<Work::Pending> work_;
  WorkTimes& times_;
  Call call_;
  Clock::time_point started_;
  bool complete_ = false;  // this rank's results can be read
};

Work WorkTimes::track(const Call& call, std::unique_ptr<Work::Pending> work,
                      Clock::time_point started) {
  note_exposed("start", &call, started);
  if (work == nullptr) return Work();
  if (in_flight_++ == 0) in_flight_since_ = started;
  return Work(std::make_unique<TimedWork>(std::move(work), *this, call, started));
}

double WorkTimes::in_flight_seconds() const {
  if (in_flight_ == 0) return in_flight_seconds_;
  return in_flight_seconds_ +
         std::chrono::duration<double>(Clock::now() - in_flight_since_).count();
}

void WorkTimes::note_exposed(const char* what, const Call* call, Clock::time_point from) {
  const auto now = Clock::now();
  exposed_seconds_ += std::chrono::duration<double>(now - from).count();
  if (activities_ == nullptr) return;
  activities_->push_back({Activity::Kind::kExposed,
                          call ? fmt::format("{} {}", what, call->title()) : std::string(what),
                          call ? call->bytes : 0, from, now});
}

void WorkTimes::note_complete(const Call& call, Clock::time_point started) {
  const auto now = Clock::now();
  if (--in_flight_ == 0) {
    in_flight_seconds_ += std::chrono::duration<double>(now - in_flight_since_).count();
  }
  if (activities_ == nullptr) return;
  activities_->push_back({Activity::Kind::kInFlight, call.title(), call.bytes, started, now});
}

}  // namespace zero::dist
