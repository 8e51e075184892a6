#pragma once

// Private to common/zero/distributed.

#include <cstdint>
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
                   const ConnectOptions& options, const std::string& why_shared)
      : GlooCommunicator(std::move(store), std::move(group), options,
                         transport->shares() ? "shared memory within the host: " + why_shared
                                             : "one copy within the host"),
        transport_(std::move(transport)) {}

 protected:
  WorkPtr exchange_parts(const Call&, at::Tensor source, std::int64_t offset,
                         std::vector<Part> outgoing, std::vector<Part> incoming) override;
  WorkPtr reduce_pieces(const Call&, at::Tensor input, std::vector<std::int64_t> bounds,
                        at::Tensor output, int divisor, bool gather) override;
  void do_progress() override { transport_->progress(); }

 private:
  std::unique_ptr<HostTransport> transport_;
};

/// Makes the fastest communicator for these ranks: a HostCommunicator if `options.transport` and
/// the system allow it, else a GlooCommunicator that says why not. Called by all ranks; blocks.
std::unique_ptr<Communicator> make_cpu_communicator(StoreExchange store, GroupPtr group,
                                                    const ConnectOptions& options);

}  // namespace zero::dist
