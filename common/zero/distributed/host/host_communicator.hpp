#pragma once

// Private to common/zero/distributed.

#include <memory>
#include <string>
#include <vector>

#include <zero/distributed/gloo/gloo_communicator.hpp>
#include <zero/distributed/host/host_transport.hpp>

namespace zero::dist {

/// Ranks of one machine: collectives by one copy out of the peer's memory instead of two through
/// TCP (or, where the system forbids that, by two through shared memory); the same bits, the same
/// traffic counters ("sent" is what peers copied out of this rank).
/// Messages between two ranks, the backend's own (native) reductions and start-up stay with Gloo.
class HostCommunicator final : public GlooCommunicator {
 public:
  /// `why_shared` says why memory is shared, where it is.
  HostCommunicator(StoreExchange store, GroupPtr group, std::unique_ptr<HostTransport> transport,
                   int rank, int size, const ConnectOptions& options, std::string why_shared)
      : GlooCommunicator(std::move(store), std::move(group), rank, size, options),
        transport_(std::move(transport)),
        why_shared_(std::move(why_shared)) {}

  std::string transport() const override {
    return transport_->shares() ? "shared memory within the host: " + why_shared_
                                : "one copy within the host";
  }

 protected:
  WorkPtr do_broadcast(const Call&, at::Tensor tensor, int root) override;
  WorkPtr do_reduce(const Call&, at::Tensor tensor, int root, ReduceOp op) override;
  WorkPtr do_all_reduce(const Call&, at::Tensor tensor, ReduceOp op) override;
  WorkPtr do_reduce_scatter(const Call&, at::Tensor output, at::Tensor input, ReduceOp op) override;
  WorkPtr do_all_gather(const Call&, at::Tensor output, at::Tensor input) override;
  WorkPtr do_all_to_all(const Call&, at::Tensor output, at::Tensor input) override;
  void do_progress() override { transport_->progress(); }

 private:
  /// What must be the same on all ranks for one collective.
  static std::string text_of(const Call& call, const at::Tensor& tensor, int root = -1);
  bool native() const { return order() == ReductionOrder::kNative; }

  std::unique_ptr<HostTransport> transport_;
  std::string why_shared_;
};

/// The fastest communicator that these ranks can have: a HostCommunicator where `options.transport`
/// and the system allow it, else a GlooCommunicator that says why. Called by all ranks; blocks.
std::unique_ptr<Communicator> make_cpu_communicator(StoreExchange store, GroupPtr group, int rank,
                                                    int size, const ConnectOptions& options);

}  // namespace zero::dist
