#include "hsdp.hpp"

#include <ATen/ops/empty.h>
#include <ATen/record_function.h>

#include <utility>

#include <zero/memory/accounting.hpp>

namespace zero {

using dist::Purpose;
using dist::Reduction;

ReduceInGroups::ReduceInGroups(const dist::Mesh& groups, dist::ReduceType type,
                               const train::FlatBuffer& buffer)
    : group_(groups.along("shard")),
      replicas_(groups.along("replica")),
      ranks_(groups.data().size()),
      type_(type),
      shard_(buffer.layout.shard()),
      dtype_(buffer.options.dtype().toScalarType()) {}

dist::Work ReduceInGroups::reduce(const at::Tensor& full, const at::Tensor& shard) {
  sum_ = shard;
  if (at::isReducedFloatingType(dtype_) && type_ == dist::ReduceType::kFloat32) {
    // Only the second part rounds. Rounding here too would be once too often.
    const memory::Charge charge(memory::Category::kCommunication);
    sum_ = at::empty({shard_}, full.options().dtype(at::kFloat));
  }
  return group_.reduce_scatter(sum_, full, Purpose::kGradient, {dist::ReduceOp::kSum, type_});
}

dist::Work ReduceInGroups::reduce_rest(const at::Tensor& shard) {
  RECORD_USER_SCOPE("hsdp_grad_all_reduce");
  const Reduction last = group_.size() > 1
                             ? Reduction::average_of_sums(ranks_, type_)
                             : Reduction{dist::ReduceOp::kAverage, type_};  // no sum was made
  return replicas_.all_reduce(shard, std::exchange(sum_, at::Tensor()), Purpose::kGradient, last);
}

train::SentBytes ReduceInGroups::sent() const {
  const std::int64_t inside =
      (group_.size() - 1) * shard_ * group_.reduced_element_size(dtype_, type_);
  const std::int64_t between = dist::all_reduce_bytes(
      shard_, replicas_.reduced_element_size(dtype_, type_), replicas_.rank(), replicas_.size());
  return {inside + between, between};
}

train::Transfers hsdp_transfers(const dist::Mesh& groups, dist::ReduceType type) {
  train::Transfers transfers;
  transfers.shards = &groups.along("shard");
  if (groups.along("replica").size() == 1) return transfers;
  transfers.replicas = &groups.along("replica");
  transfers.gradients = [groups, type](const train::FlatBuffer& buffer) {
    return std::make_unique<ReduceInGroups>(groups, type, buffer);
  };
  return transfers;
}

std::unique_ptr<ShardedDataParallel> make_hsdp(const train::StrategyArguments& arguments,
                                               const ShardingOptions& options,
                                               std::int64_t shard_size) {
  const train::StrategyArguments groups = arguments.with_shards(shard_size);
  return std::make_unique<ShardedDataParallel>(groups, options,
                                               hsdp_transfers(groups.mesh, arguments.reduce_type));
}

}  // namespace zero
