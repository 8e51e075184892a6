#pragma once

// Private to common/zero/distributed.

#include <deque>

#include <zero/distributed/hierarchical/host_task.hpp>

namespace zero::dist {

/// An all-gather or broadcast over hosts (HostRoutes). Messages to other hosts start at once; the
/// thread passes on those that arrive.
class HostGather final : public HostTask {
 public:
  HostGather(const HostLinks& links, const Call& call, const at::Tensor& output,
             const at::Tensor& input);

  void run() override;
  void finish() override { outgoing_.wait(); }

 private:
  struct Step {
    at::Tensor whole;
    at::Tensor piece;    // of this rank
    MessageSet message;  // brings it
  };

  const HostLinks& links_;
  Call call_;
  std::deque<Step> steps_;
  MessageSet outgoing_;
};

}  // namespace zero::dist
