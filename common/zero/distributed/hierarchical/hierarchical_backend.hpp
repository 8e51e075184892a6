#pragma once

// Private to common/zero/distributed.

#include <array>
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
/// Threads take the steps of these collectives (HostTask): one after the other those that add up,
/// and beside them the others, in the order in which they were started, which is the same on all
/// ranks. So they go on while this rank computes, ranks may wait for them in any order, and
/// parameters do not wait until gradients have crossed a slow link.
class HierarchicalBackend final : public Backend {
 public:
  /// `place` is this rank among all, `messages` connects all, each of `inside` the ranks of this
  /// host by a HostBackend.
  HierarchicalBackend(const Place& place, HostRoutes routes, std::unique_ptr<Backend> direct,
                      const GlooLinks& messages, std::array<Connection, 2> inside);
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
  /// `error`, and that of the other line if it has another.
  std::string with_cause(std::string error) const;
  /// Collectives of which one follows the other.
  struct Line {
    HostLinks links;
    std::shared_future<void> last;  // the latest task; ends first
  };
  WorkPtr run_in_order(const Call& call, Line& line, std::shared_ptr<HostTask> task);

  std::unique_ptr<Backend> direct_;
  std::array<Connection, 2> inside_;
  std::array<Line, 2> lines_;  // those that copy, those that add up
};

}  // namespace zero::dist
