#include "hsdp.hpp"

#include <ATen/record_function.h>

namespace zero {

using dist::Purpose;

void declare(base::Keys& keys, HsdpOptions& options) {
  declare(keys, options.overlap);
  keys.count_or("shard_size", "host", dist::Mesh::kRanksOfHost, options.shard_size, /*least=*/1);
  keys.require([&options] { return options.overlap.stage > 0; },
               "stage is 0; with a shard_size something must be sharded: take 1, 2 or 3");
}

Hsdp::Hsdp(const HsdpOptions& options, const train::StrategyArguments& arguments)
    : Overlap(arguments, options.overlap, arguments.mesh.along("shard"),
              arguments.mesh.along("replica").size() > 1 ? &arguments.mesh.along("replica")
                                                         : nullptr) {}

void Hsdp::shard_reduced(const train::ReducedShard& shard) {
  if (!has_replicas()) return;  // reduced and divided already
  RECORD_USER_SCOPE("hsdp_grad_all_reduce");
  dist::Reduction last = average_;  // with S = 1 no first sum was made
  if (shard_group().size() > 1) {
    last = dist::Reduction::average_of_sums(communicator_.size(), average_.type);
  }
  between_groups_.push_back(
      replica_group().all_reduce(shard.gradients, shard.sum, Purpose::kGradient, last));
}

train::Costs Hsdp::costs() const {
  train::Costs costs = Overlap::costs();
  if (!has_replicas()) return costs;
  for (const train::FlatParameters& bucket : buckets()) {
    if (!bucket.trainable()) continue;
    costs.sent_between_groups +=
        dist::all_reduce_bytes(bucket.layout().shard(),
                               replica_group().reduced_element_size(bucket.dtype(), average_.type),
                               replica_group().rank(), replica_group().size());
  }
  costs.sent += costs.sent_between_groups;
  return costs;
}

}  // namespace zero
