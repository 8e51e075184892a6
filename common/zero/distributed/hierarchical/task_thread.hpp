#pragma once

// Private to common/zero/distributed.

#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <mutex>
#include <thread>

namespace zero::dist {

/// Runs tasks one after the other, in the order in which they were added, on a thread of its own.
class TaskThread {
 public:
  TaskThread() = default;
  /// Blocks until the task that runs has ended; those that have not begun never run.
  ~TaskThread();
  TaskThread(const TaskThread&) = delete;
  TaskThread& operator=(const TaskThread&) = delete;

  /// Returns at once. What the task throws, get() of the future throws.
  std::future<void> add(std::function<void()> task);

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::packaged_task<void()>> tasks_;
  bool ended_ = false;
  std::thread thread_;  // begins with the first task
};

}  // namespace zero::dist
