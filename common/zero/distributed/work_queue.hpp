#pragma once

#include <deque>

#include <zero/distributed/work.hpp>

namespace zero::dist {

/// Operations in flight that are waited for together, oldest first.
class WorkQueue {
 public:
  /// `rank`: of this process, for an error that the destructor has to say.
  explicit WorkQueue(int rank) : rank_(rank) {}
  /// Waits for what is in flight, because a handle may not be dropped before. Logs the first error
  /// unless an exception is propagating: if a peer is gone, the caller has heard of it from the
  /// operation that failed first.
  ~WorkQueue();
  WorkQueue(const WorkQueue&) = delete;
  WorkQueue& operator=(const WorkQueue&) = delete;

  void push_back(Work work) { in_flight_.push_back(std::move(work)); }
  /// Blocks until all are complete. Throws as Work::wait() does; the others are then still there.
  void wait();

 private:
  int rank_;
  std::deque<Work> in_flight_;
};

}  // namespace zero::dist
