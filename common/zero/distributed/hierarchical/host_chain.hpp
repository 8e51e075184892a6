#pragma once

// Private to common/zero/distributed.

#include <torch/types.h>

#include <deque>
#include <vector>

#include <zero/distributed/hierarchical/host_task.hpp>
#include <zero/distributed/not_finite.hpp>

namespace zero::dist {

/// A reduction in rank order as a chain over hosts (HostRoutes), in windows, so that all links of
/// the chain work at the same time. Scratch: sixteen windows from and to neighbours, and a block
/// for each other rank of the host.
class HostChain final : public HostTask {
 public:
  HostChain(const HostLinks& links, const Call& call, const at::Tensor& output,
            const at::Tensor& input)
      : links_(links), call_(call), input_(input.flatten()), output_(output.flatten()) {}

  void run() override;
  void finish() override;

 private:
  using Window = HostRoutes::Range;
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
  void return_sums();
  void share_sums();

  const HostLinks& links_;
  Call call_;
  at::Tensor input_, output_;
  at::ScalarType sums_ = type_of_sums(input_.scalar_type());  // the type of sums on their way
  int host_ = links_.routes.host_of(links_.rank), place_ = links_.routes.place_of(links_.rank);
  std::vector<Window> windows_ = windows_of(place_);
  std::deque<Flight> arriving_;  // sums of the host before
  std::deque<Flight> leaving_;
  std::deque<MessageSet> returning_;  // of an all-reduce
  MessageSet results_{links_.messages, call_};
  NotFinite not_finite_{links_.rank, links_.routes.hosts() * links_.routes.per_host()};
};

}  // namespace zero::dist
