#pragma once

// Private to zero/distributed.

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <zero/distributed/communicator.hpp>
#include <zero/distributed/gloo/gloo_group.hpp>
#include <zero/distributed/store/call_log.hpp>

namespace zero::dist {

/// What the messages of a communicator have in common.
struct GlooLinks {
  GroupPtr group;  ///< null for one rank
  std::chrono::milliseconds timeout;
  std::shared_ptr<CallLog> log;
};

/// Messages of one collective over Gloo that are waited on together. Errors name the peer that did
/// not answer.
class MessageSet final : public Work::Backend {
 public:
  using Message = c10::intrusive_ptr<c10d::Work>;

  /// `links` must outlive it. `after`, if given, runs at the end of wait().
  MessageSet(const GlooLinks& links, const Communicator::Call& call,
             std::function<void()> after = {})
      : links_(links), call_(call), after_(std::move(after)) {}

  void send(at::Tensor tensor, int to, int tag);
  void recv(at::Tensor tensor, int from, int tag);
  /// One of c10d's own collectives.
  void add(Message collective) { messages_.emplace_back(std::move(collective), /*peer=*/-1); }

  /// Blocks until all are done, in the order in which they were started.
  void wait() override;

 private:
  void wait_for(const Message& message, int peer) const;
  [[noreturn]] void fail(int peer, const std::string& cause) const;

  const GlooLinks& links_;
  Communicator::Call call_;
  std::function<void()> after_;
  std::vector<std::pair<Message, int>> messages_;  // and their peers
};

}  // namespace zero::dist
