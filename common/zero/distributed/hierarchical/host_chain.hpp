#pragma once

// Private to common/zero/distributed.

#include <torch/types.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include <zero/distributed/gloo/message_set.hpp>
#include <zero/distributed/hierarchical/host_routes.hpp>
#include <zero/distributed/host/host_backend.hpp>
#include <zero/distributed/rank_order.hpp>

namespace zero::dist {

/// What the collectives of a communicator over hosts share.
struct HostLinks {
  HostRoutes routes;
  int rank;
  HostBackend& inside;        ///< between the ranks of this host
  const GlooLinks& messages;  ///< between all ranks
  const GlooLinks& results;   ///< the same, of messages that the caller waits for
  /// Waits for messages of `messages`, on the thread of the backend.
  std::function<void(MessageSet&)> wait;
};

/// A reduction in rank order as a chain over hosts (HostRoutes), in windows, so that all links of
/// the chain work at the same time. Scratch: four windows from and to neighbours, and a block for
/// each other rank of the host.
class HostChain {
 public:
  /// `output`: of a reduce-scatter; it may be this rank's piece of `input`.
  HostChain(const HostLinks& links, const Call& call, at::Tensor input, at::Tensor output);

  /// This rank's part. Blocks, but not for results().
  void run();
  /// What must be waited for after it.
  MessageSet& results() { return results_; }
  /// Ranks whose values were not finite, as Call::not_finite wants them.
  const std::vector<int>& not_finite() const { return not_finite_; }

 private:
  struct Window {
    std::int64_t begin;
    std::int64_t length;
    int owner;
  };
  struct Flight {
    at::Tensor block;
    MessageSet message;
  };

  std::vector<Window> windows_of(int place) const;
  int neighbour(int hosts) const;
  bool first() const { return host_ == 0; }
  bool last() const { return host_ == links_.routes.hosts() - 1; }
  at::Tensor part(const Window& window) const {
    return input_.narrow(0, window.begin, window.length);
  }
  at::Tensor result(const Window& window) const;

  void receive_results();
  void receive_sum(std::size_t w);
  void add(const Window& window, HostReads& reads);
  at::Tensor make_room(const Window& window, at::ScalarType dtype);
  void send(const at::Tensor& block, int to, int tag);
  void note_not_finite(const std::vector<at::Tensor>& values, const SumCheck& check,
                       const at::Tensor& sum);
  void return_sums();
  void share_sums();

  const HostLinks& links_;
  Call call_;
  at::Tensor input_, output_;
  at::ScalarType sums_;  // the type of sums on their way
  int host_, place_;
  std::vector<Window> windows_;
  std::deque<Flight> arriving_;  // sums of the host before
  std::deque<Flight> leaving_;
  std::deque<MessageSet> returning_;  // of an all-reduce
  MessageSet results_;
  std::vector<int> not_finite_;
};

}  // namespace zero::dist
