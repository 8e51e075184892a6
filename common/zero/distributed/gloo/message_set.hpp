#pragma once

// Private to zero/distributed.

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <zero/distributed/gloo/gloo_group.hpp>
#include <zero/distributed/gloo/link.hpp>
#include <zero/distributed/store/call_log.hpp>
#include <zero/distributed/work.hpp>

namespace zero::dist {

/// What the messages of a communicator have in common.
struct GlooLinks {
  GroupPtr group;  ///< null for one rank
  std::chrono::milliseconds timeout;
  CallLog* log;
  std::shared_ptr<Link> link;  ///< null: as fast as the network
};

// Gloo pairs messages by a tag of 31 bits, and those of one tag in the order of sending. Of the
// fingerprint it holds the number of the call, so that collectives in flight differ in any case,
// and 19 bits of the hash.
inline constexpr int kResultTag = 1 << 29;   ///< sums on their way back
inline constexpr int kMessageTag = 1 << 30;  ///< send() and recv()
inline int tag_of(const Call& call) {
  return static_cast<int>(call.fingerprint & static_cast<std::uint64_t>(kResultTag - 1));
}

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
  struct Started {
    Message message;
    int peer;
    at::Tensor arrival;  // over a Link: when the tensor is there
  };
  void start(Operation operation, const at::Tensor& tensor, int peer, int tag,
             const at::Tensor& arrival = {});
  void wait_for(const Message& message, int peer) const;
  /// `why` is a disagreement that was found, or empty.
  [[noreturn]] void fail(int peer, const std::string& cause, std::string why) const;

  const GlooLinks& links_;
  Call call_;
  std::vector<Started> messages_;
};

}  // namespace zero::dist
