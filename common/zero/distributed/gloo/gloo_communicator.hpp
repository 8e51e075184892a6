#pragma once

// Private to common/zero/distributed, like every header that shows c10d types.

#include <memory>
#include <string>
#include <vector>

#include <zero/distributed/communicator.hpp>
#include <zero/distributed/connect.hpp>
#include <zero/distributed/gloo/gloo_group.hpp>
#include <zero/distributed/gloo/messenger.hpp>
#include <zero/distributed/store/store_exchange.hpp>

namespace zero::dist {

class ArrivalScratch;

/// CPU tensors over Gloo. Every collective consists of direct messages between pairs of ranks
/// (docs/benchmarks.md compares them with Gloo's own); reductions add in rank order.
class GlooCommunicator : public Communicator {
 public:
  /// Called by all ranks; blocks until they are connected. `group` is null for one rank.
  /// `why_not_faster` says why ranks do not read each other's memory.
  GlooCommunicator(StoreExchange store, GroupPtr group, int rank, int size,
                   const ConnectOptions& options, std::string why_not_faster = "");

  std::string transport() const override;
  bool checks_gradients() const override {
    return size() > 1 && order() == ReductionOrder::kRankOrdered;
  }

  /// Null for one rank.
  const GroupPtr& group() const { return messenger_.group(); }

  std::vector<std::string> exchange(const std::string& text) override;
  std::unique_ptr<Communicator> split(const std::vector<int>& ranks,
                                      const std::string& label) override;

 protected:
  WorkPtr do_broadcast(const Call&, at::Tensor tensor, int root) override;
  WorkPtr do_reduce(const Call&, at::Tensor tensor, int root, ReduceOp op) override;
  WorkPtr do_all_reduce(const Call&, at::Tensor tensor, ReduceOp op) override;
  WorkPtr do_reduce_scatter(const Call&, at::Tensor output, at::Tensor input, ReduceOp op) override;
  WorkPtr do_all_gather(const Call&, at::Tensor output, at::Tensor input) override;
  WorkPtr do_all_to_all(const Call&, at::Tensor output, at::Tensor input) override;
  WorkPtr do_send(const Call&, at::Tensor tensor, int destination, int tag) override;
  WorkPtr do_recv(const Call&, at::Tensor tensor, int source, int tag) override;

  /// Makes the communicator of a group that split() has connected: of the same class as this one.
  virtual std::unique_ptr<Communicator> make_group(StoreExchange store, GroupPtr group, int rank,
                                                   int size);

  std::string describe(const Call& call) const;  ///< for error messages
  static int first_tag(const Call& call);
  void check_device(const at::Tensor& tensor) const;
  const ConnectOptions& options() const { return options_; }

 private:
  StoreExchange store_;
  Messenger messenger_;
  std::shared_ptr<ArrivalScratch> scratch_;
  ConnectOptions options_;
  std::string why_not_faster_;
};

}  // namespace zero::dist
