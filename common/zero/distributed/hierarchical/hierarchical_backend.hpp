#pragma once

// Private to common/zero/distributed.

#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include <zero/distributed/gloo/message_set.hpp>
#include <zero/distributed/hierarchical/host_chain.hpp>
#include <zero/distributed/hierarchical/task_thread.hpp>
#include <zero/distributed/host/host_backend.hpp>

namespace zero::dist {

/// CPU tensors between ranks of several hosts (HostRoutes): what goes to another host goes there
/// once, and on to the ranks of the host by a HostBackend. What HostRoutes does not take, `direct`
/// carries.
///
/// A thread of its own takes the steps of all these collectives, in the order in which they were
/// started, which is the same on all ranks. So they go on while this rank computes, and ranks may
/// wait for them in any order.
class HierarchicalBackend final : public Backend {
 public:
  /// `place` is this rank among all, `messages` connects all, `inside` the ranks of this host,
  /// whose start-up went through `exchange`.
  HierarchicalBackend(const Place& place, HostRoutes routes, std::unique_ptr<Backend> direct,
                      const GlooLinks& messages, std::shared_ptr<StoreExchange> exchange,
                      std::unique_ptr<HostBackend> inside);
  ~HierarchicalBackend() override;

  WorkPtr broadcast(const Call& call, at::Tensor tensor) override;
  WorkPtr reduce(const Call& call, at::Tensor tensor) override;
  WorkPtr all_reduce(const Call& call, at::Tensor tensor) override;
  WorkPtr reduce_scatter(const Call& call, at::Tensor output, at::Tensor input) override;
  WorkPtr all_gather(const Call& call, at::Tensor output, at::Tensor input) override;
  WorkPtr all_to_all(const Call& call, at::Tensor output, at::Tensor input) override {
    return direct_->all_to_all(call, std::move(output), std::move(input));
  }
  WorkPtr message(const Call& call, at::Tensor tensor) override {
    return direct_->message(call, std::move(tensor));
  }

  void progress() override { direct_->progress(); }
  std::string transport() const override { return direct_->transport(); }
  bool finds_not_finite() const override { return direct_->finds_not_finite(); }
  std::optional<std::int64_t> sent_between_hosts(const Call& call,
                                                 const at::Tensor& tensor) const override;

  Backend& direct() { return *direct_; }
  std::unique_ptr<Backend> take_direct() { return std::move(direct_); }

 private:
  class TaskWork;
  class Gather;

  WorkPtr reduce_by_chain(const Call& call, const at::Tensor& input, const at::Tensor& output);
  void wait_for(MessageSet& messages);
  void stop();

  std::unique_ptr<Backend> direct_;
  CallLog& log_;
  std::shared_ptr<StoreExchange> exchange_;
  std::unique_ptr<HostBackend> inside_;
  CallLog silent_log_{nullptr, 0, 1};  // of the thread: ranks compare calls where they wait
  GlooLinks messages_;                 // of the thread
  GlooLinks results_;                  // waited for by the caller
  HostLinks links_;
  std::mutex mutex_;
  bool stopped_ = false;
  const MessageSet* waited_for_ = nullptr;  // by the thread
  TaskThread thread_;                       // ends first
};

}  // namespace zero::dist
