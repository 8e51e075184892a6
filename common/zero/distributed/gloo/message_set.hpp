#pragma once

// Private to zero/distributed.

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include <zero/distributed/gloo/gloo_group.hpp>
#include <zero/distributed/store/call_log.hpp>
#include <zero/distributed/work.hpp>

namespace zero::dist {

/// What the messages of a communicator have in common.
struct GlooLinks {
  GroupPtr group;  ///< null for one rank
  std::chrono::milliseconds timeout;
  CallLog* log;
};

/// Messages of one collective over Gloo that are waited on together. Errors name the peer that did
/// not answer.
class MessageSet final : public Work::Pending {
 public:
  using Message = c10::intrusive_ptr<c10d::Work>;

  /// `links` must outlive it.
  MessageSet(const GlooLinks& links, const Call& call) : links_(links), call_(call) {}

  /// Operation::kSend to `peer`, or kRecv from it.
  void add(Operation operation, at::Tensor tensor, int peer, int tag);
  void send(at::Tensor tensor, int to, int tag) {
    add(Operation::kSend, std::move(tensor), to, tag);
  }
  void recv(at::Tensor tensor, int from, int tag) {
    add(Operation::kRecv, std::move(tensor), from, tag);
  }

  /// Blocks until all are done, in the order in which they were started.
  void wait() override;

 private:
  void wait_for(const Message& message, int peer) const;
  [[noreturn]] void fail(int peer, const std::string& cause) const;

  const GlooLinks& links_;
  Call call_;
  std::vector<std::pair<Message, int>> messages_;  // and their peers
};

}  // namespace zero::dist
