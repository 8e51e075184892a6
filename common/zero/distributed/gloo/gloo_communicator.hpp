#pragma once

// Private to common/zero/distributed, like every header that shows c10d types.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <zero/distributed/communicator.hpp>
#include <zero/distributed/connect.hpp>
#include <zero/distributed/gloo/gloo_group.hpp>
#include <zero/distributed/gloo/message_set.hpp>
#include <zero/distributed/store/store_exchange.hpp>
#include <zero/memory/storage_pool.hpp>

namespace zero::dist {

/// Scratch in which contributions of peers arrive. Reductions that overlap in time reuse each
/// other's blocks and so avoid page faults; the last one frees all blocks.
struct ArrivalScratch {
  memory::StoragePool pool;
  int reductions = 0;  ///< in flight
};

/// CPU tensors over Gloo. Every collective consists of direct messages between pairs of ranks
/// (docs/benchmarks.md compares them with Gloo's own); reductions add in rank order, or are Gloo's
/// own for ReductionOrder::kNative.
class GlooCommunicator : public Communicator {
 public:
  /// `group` connects all ranks and is null for one. `transport`: see Communicator::transport().
  GlooCommunicator(StoreExchange store, GroupPtr group, const ConnectOptions& options,
                   std::string transport = "TCP");

  std::string transport() const override { return size() == 1 ? "none" : transport_; }
  bool checks_gradients() const override {
    return size() > 1 && order() == ReductionOrder::kRankOrdered;
  }

  /// Null for one rank.
  const GroupPtr& group() const { return links_.group; }

  std::vector<std::string> exchange(const std::string& text) override;

 protected:
  WorkPtr do_broadcast(const Call&, at::Tensor tensor, int root) override;
  WorkPtr do_reduce(const Call&, at::Tensor tensor, int root, int divisor) override;
  WorkPtr do_all_reduce(const Call&, at::Tensor tensor, int divisor) override;
  WorkPtr do_reduce_scatter(const Call&, at::Tensor output, at::Tensor input, int divisor) override;
  WorkPtr do_all_gather(const Call&, at::Tensor output, at::Tensor input) override;
  WorkPtr do_all_to_all(const Call&, at::Tensor output, at::Tensor input) override;
  WorkPtr do_message(const Call&, at::Tensor tensor, int peer) override;
  void check_device(const at::Tensor& tensor) const override;
  std::unique_ptr<Communicator> do_split(const std::vector<int>& ranks,
                                         const std::string& label) override;

  /// What a peer receives from this rank, or the tensor that a peer's data goes to.
  struct Part {
    int peer;
    at::Tensor tensor;
  };

  /// Broadcast, all-gather, all-to-all: peers receive `outgoing`, parts of `source`, and send
  /// `incoming`, which begins at byte `offset` of their own `source`.
  virtual WorkPtr exchange_parts(const Call&, at::Tensor source, std::int64_t offset,
                                 std::vector<Part> outgoing, std::vector<Part> incoming);

  /// Reductions in rank order. Rank p owns elements [bounds[p], bounds[p + 1]) of `input` (flat):
  /// it adds all ranks' contributions to them in rank order, divides the sum by `divisor` and
  /// writes `output` (flat), which may be its own part of `input`. With `gather` all sums return
  /// into `input`, which makes it an all-reduce.
  virtual WorkPtr reduce_pieces(const Call&, at::Tensor input, std::vector<std::int64_t> bounds,
                                at::Tensor output, int divisor, bool gather);
  static std::vector<at::Tensor> cut(const at::Tensor& input,
                                     const std::vector<std::int64_t>& bounds);

  /// Makes the communicator of a group that do_split() has connected: of the same class as this
  /// one.
  virtual std::unique_ptr<Communicator> make_group(StoreExchange store, GroupPtr group);

  const ConnectOptions& options() const { return options_; }
  bool native() const { return order() == ReductionOrder::kNative; }
  std::size_t me() const { return static_cast<std::size_t>(rank()); }
  /// All ranks but this one, in order.
  std::vector<int> others() const;
  /// `elements` cut into pieces as equal as possible, one for each rank.
  std::vector<std::int64_t> even_bounds(std::int64_t elements) const;

 private:
  StoreExchange store_;
  GlooLinks links_;
  ArrivalScratch scratch_;
  ConnectOptions options_;
  std::string transport_;
};

}  // namespace zero::dist
