#pragma once

// Private to common/zero/distributed.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <zero/distributed/host/host_transport.hpp>
#include <zero/distributed/pairwise_backend.hpp>

namespace zero::dist {

/// CPU tensors between ranks of one machine, which read each other's tensors in place: collectives
/// copy once, where TCP copies twice, and sums none at all. The bits and the traffic counters are
/// the same as over TCP ("sent" is what peers read from this rank).
class HostBackend final : public PairwiseBackend {
 public:
  /// `other` carries messages between two ranks.
  HostBackend(const Place& place, std::unique_ptr<HostTransport> transport,
              std::unique_ptr<Backend> other)
      : PairwiseBackend(place.rank, place.size),
        other_(std::move(other)),
        transport_(std::move(transport)) {}

  std::string transport() const override { return "one copy within the host"; }
  bool finds_not_finite() const override { return true; }
  void progress() override { transport_->progress(); }

  WorkPtr exchange_parts(const Call& call, at::Tensor source, std::vector<Part> outgoing,
                         std::vector<Part> incoming) override;

 protected:
  WorkPtr reduce_pieces(const Call& call, Pieces pieces) override;
  WorkPtr message(const Call& call, at::Tensor tensor) override {
    return other_->start(call, tensor, tensor);
  }

 private:
  std::unique_ptr<Backend> other_;
  std::unique_ptr<HostTransport> transport_;
};

}  // namespace zero::dist
