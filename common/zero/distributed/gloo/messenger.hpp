#pragma once

// Private to zero/distributed.

#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include <zero/distributed/gloo/gloo_group.hpp>
#include <zero/distributed/store/call_log.hpp>

namespace zero::dist {

/// Messages between pairs of ranks over Gloo, with errors that name the peer that did not answer.
class Messenger {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  Messenger(GroupPtr group, int rank, std::chrono::milliseconds timeout,
            std::shared_ptr<CallLog> log)
      : group_(std::move(group)), rank_(rank), timeout_(timeout), log_(std::move(log)) {}

  /// `what` and `peer` are for the message of the zero::Error, here and in wait().
  WorkPtr send(at::Tensor tensor, int to, int tag, const std::string& what) const;
  WorkPtr recv(at::Tensor tensor, int from, int tag, const std::string& what) const;

  /// Blocks until `work` is done.
  void wait(const WorkPtr& work, const std::string& what, int peer) const;

  const GroupPtr& group() const { return group_; }

 private:
  [[noreturn]] void fail(const std::string& what, int peer, const std::string& cause) const;

  GroupPtr group_;
  int rank_;
  std::chrono::milliseconds timeout_;
  std::shared_ptr<CallLog> log_;
};

}  // namespace zero::dist
