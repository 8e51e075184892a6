#pragma once

// Private to common/zero/distributed, like every header that shows c10d types.

#include <memory>
#include <string>
#include <vector>

#include <zero/distributed/gloo/gloo_group.hpp>
#include <zero/distributed/gloo/message_set.hpp>
#include <zero/distributed/pairwise_backend.hpp>
#include <zero/memory/storage_pool.hpp>

namespace zero::dist {

/// CPU tensors over Gloo, by direct messages between pairs of ranks.
class GlooBackend final : public PairwiseBackend {
 public:
  /// `group` connects all ranks. `transport`: see Backend::transport().
  GlooBackend(const Place& place, GroupPtr group, std::string transport = "TCP");

  std::string transport() const override { return transport_; }
  bool finds_not_finite() const override { return true; }

 protected:
  WorkPtr exchange_parts(const Call& call, at::Tensor source, std::vector<Part> outgoing,
                         std::vector<Part> incoming) override;
  WorkPtr reduce_pieces(const Call& call, Pieces pieces) override;
  WorkPtr message(const Call& call, at::Tensor tensor) override;

 private:
  std::shared_ptr<StoreExchange> store_;
  GlooLinks links_;
  // Scratch in which contributions of peers arrive. Reductions that overlap in time reuse each
  // other's blocks and so avoid page faults; the last one frees all blocks.
  std::weak_ptr<memory::StoragePool> scratch_;
  std::string transport_;
};

}  // namespace zero::dist
