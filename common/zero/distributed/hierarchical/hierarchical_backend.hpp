#pragma once

// Private to common/zero/distributed.

#include <future>
#include <memory>
#include <string>

#include <zero/distributed/gloo/message_set.hpp>
#include <zero/distributed/hierarchical/host_task.hpp>
#include <zero/distributed/host/host_backend.hpp>

namespace zero::dist {

/// CPU tensors between ranks of several hosts (HostRoutes): a piece goes to another host once, and
/// on to the ranks of that host by a HostBackend. `direct` carries the calls that HostRoutes does
/// not take.
///
/// Threads take the steps of all these collectives (HostTask), one after the other in the order in
/// which they were started, which is the same on all ranks. So they go on while this rank computes,
/// and ranks may wait for them in any order.
class HierarchicalBackend final : public Backend {
 public:
  /// `place` is this rank among all, `messages` connects all, `inside` the ranks of this host by a
  /// HostBackend.
  HierarchicalBackend(const Place& place, HostRoutes routes, std::unique_ptr<Backend> direct,
                      const GlooLinks& messages, Connection inside);
  ~HierarchicalBackend() override;

  WorkPtr start(const Call& call, at::Tensor output, at::Tensor input) override;

  void progress() override { direct_->progress(); }
  std::string transport() const override { return direct_->transport(); }
  bool finds_not_finite() const override { return direct_->finds_not_finite(); }

  Backend& direct() { return *direct_; }
  std::unique_ptr<Backend> take_direct() { return std::move(direct_); }

 private:
  /// Does `steps`. If they fail, peers hear of it: they need not wait to find out.
  auto or_give_up(const auto& steps);
  void give_up();
  WorkPtr run_in_order(const Call& call, std::shared_ptr<HostTask> task);

  std::unique_ptr<Backend> direct_;
  Connection inside_;
  HostLinks links_;
  std::shared_future<void> last_;  // the latest task; ends first
};

}  // namespace zero::dist
