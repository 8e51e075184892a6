#include <fmt/format.h>

#include <exception>
#include <utility>

#include <zero/base/error.hpp>
#include <zero/base/program.hpp>
#include <zero/distributed/work_queue.hpp>

namespace zero::dist {

WorkQueue::~WorkQueue() {
  bool said = std::uncaught_exceptions() > 0;
  for (Work& work : in_flight_) {
    try {
      work.wait();
    } catch (const std::exception& error) {
      if (!said) log_error(fmt::format("rank {}: {}", rank_, message_of(error)));
      said = true;
    }
  }
}

void WorkQueue::wait() {
  while (!in_flight_.empty()) {
    Work oldest = std::move(in_flight_.front());
    in_flight_.pop_front();
    oldest.wait();
  }
}

}  // namespace zero::dist
