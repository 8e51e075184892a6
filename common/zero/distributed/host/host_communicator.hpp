#pragma once

// Private to common/zero/distributed.

#include <memory>
#include <string>
#include <vector>

#include <zero/distributed/gloo/gloo_communicator.hpp>
#include <zero/distributed/host/host_transport.hpp>

namespace zero::dist {

/// Ranks of one machine. Collectives copy once, out of the peer's memory, where TCP copies twice;
/// where the system forbids reading, twice through shared memory. The bits and the traffic counters
/// are the same ("sent" is what peers copied from this rank). Messages between two ranks, native
/// reductions and start-up use Gloo.
class HostCommunicator final : public GlooCommunicator {
 public:
  /// `why_shared` says why memory is shared, if it is.
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
  /// A text that must be the same on all ranks for one collective.
  static std::string text_of(const Call& call, const at::Tensor& tensor, int root = -1);
  bool native() const { return order() == ReductionOrder::kNative; }

  std::unique_ptr<HostTransport> transport_;
  std::string why_shared_;
};

/// Makes the fastest communicator for these ranks: a HostCommunicator if `options.transport` and
/// the system allow it, else a GlooCommunicator that says why not. Called by all ranks; blocks.
std::unique_ptr<Communicator> make_cpu_communicator(StoreExchange store, GroupPtr group, int rank,
                                                    int size, const ConnectOptions& options);

}  // namespace zero::dist
