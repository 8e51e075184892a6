#pragma once

#include <memory>
#include <string>
#include <vector>
#include <zero/distributed/communicator.hpp>

namespace zero::testing {

/// Stands for rank `rank` of `size` without any other rank: every operation is over at once and
/// leaves its tensors as they are. What a rank holds and what formulas say of it can so be looked
/// at for any world size in one process; numbers that depend on other ranks cannot.
class FakeCommunicator final : public dist::Communicator {
 public:
  FakeCommunicator(int rank, int size)
      : Communicator(rank, size, dist::ReductionOrder::kRankOrdered, /*check_collectives=*/false) {}

  std::string transport() const override { return "none"; }
  std::vector<std::string> exchange(const std::string& text) override {
    return std::vector<std::string>(static_cast<std::size_t>(size()), text);
  }
  std::unique_ptr<dist::Communicator> split(const std::vector<int>& ranks,
                                            const std::string& /*label*/) override {
    return std::make_unique<FakeCommunicator>(/*rank=*/0, static_cast<int>(ranks.size()));
  }

 protected:
  WorkPtr do_broadcast(const Call&, at::Tensor, int) override { return nullptr; }
  WorkPtr do_reduce(const Call&, at::Tensor, int, dist::ReduceOp) override { return nullptr; }
  WorkPtr do_all_reduce(const Call&, at::Tensor, dist::ReduceOp) override { return nullptr; }
  WorkPtr do_reduce_scatter(const Call&, at::Tensor, at::Tensor, dist::ReduceOp) override {
    return nullptr;
  }
  WorkPtr do_all_gather(const Call&, at::Tensor, at::Tensor) override { return nullptr; }
  WorkPtr do_all_to_all(const Call&, at::Tensor, at::Tensor) override { return nullptr; }
  WorkPtr do_send(const Call&, at::Tensor, int, int) override { return nullptr; }
  WorkPtr do_recv(const Call&, at::Tensor, int, int) override { return nullptr; }
};

}  // namespace zero::testing
