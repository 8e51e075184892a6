#pragma once

// Private to common/distributed, and to the library zero::cuda.

#include <functional>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "zero/distributed/gloo_communicator.hpp"

namespace zero::dist {

using NcclGroup = c10::intrusive_ptr<c10d::Backend>;

/// CUDA tensors over NCCL, CPU tensors over Gloo. See enable_nccl() of nccl.hpp.
class NcclCommunicator final : public GlooCommunicator {
 public:
  /// Called by all ranks. Makes GPU `device` the current one of this thread; NCCL itself connects
  /// in the first collective. `group` is null for one rank.
  NcclCommunicator(StoreExchange store, GroupPtr group, int rank, int size, int device,
                   const ConnectOptions& options);
  /// Ends NCCL's connections. After an error it does not wait for peers.
  ~NcclCommunicator() override;

  std::string transport() const override;

 protected:
  WorkPtr do_broadcast(const Call&, at::Tensor tensor, int root) override;
  WorkPtr do_reduce(const Call&, at::Tensor tensor, int root, ReduceOp op) override;
  WorkPtr do_all_reduce(const Call&, at::Tensor tensor, ReduceOp op) override;
  WorkPtr do_reduce_scatter(const Call&, at::Tensor output, at::Tensor input, ReduceOp op) override;
  WorkPtr do_all_gather(const Call&, at::Tensor output, at::Tensor input) override;
  WorkPtr do_all_to_all(const Call&, at::Tensor output, at::Tensor input) override;
  WorkPtr do_send(const Call&, at::Tensor tensor, int destination, int tag) override;
  WorkPtr do_recv(const Call&, at::Tensor tensor, int source, int tag) override;

  std::unique_ptr<Communicator> make_group(StoreExchange store, GroupPtr group, int rank,
                                           int size) override;

 private:
  using C10dWork = c10::intrusive_ptr<c10d::Work>;

  /// Starts one of NCCL's operations; `after` runs when it is complete.
  WorkPtr start(const Call& call, const std::function<C10dWork(c10d::Backend&)>& operation,
                std::function<void()> after = {});
  WorkPtr in_rank_order(const Call& call, const std::vector<at::Tensor>& pieces,
                        const at::Tensor& output, ReduceOp op, bool gather);
  int divisor(ReduceOp op) const { return op == ReduceOp::kAverage ? size() : 1; }
  bool rank_ordered() const { return order() == ReductionOrder::kRankOrdered; }
  void check_gpu(const at::Tensor& tensor) const;

  int device_;
  NcclGroup nccl_;
  std::shared_ptr<bool> failed_ = std::make_shared<bool>(false);  // known to the works as well
};

}  // namespace zero::dist
