#include <ATen/core/grad_mode.h>

#include <utility>

#include <zero/distributed/hierarchical/task_thread.hpp>
#include <zero/memory/charge.hpp>

namespace zero::dist {

TaskThread::~TaskThread() {
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

std::future<void> TaskThread::add(std::function<void()> task) {
  std::packaged_task<void()> packaged(std::move(task));
  std::future<void> done = packaged.get_future();
  const std::lock_guard lock(mutex_);
  if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  tasks_.push_back(std::move(packaged));
  changed_.notify_all();
  return done;
}

void TaskThread::run() {
  const at::NoGradGuard no_grad;
  const memory::Charge charge(memory::Category::kCommunication);
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return ended_ || !tasks_.empty(); });
    if (ended_) return;
    std::packaged_task<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    task();
    lock.lock();
  }
}

}  // namespace zero::dist
