#include "hsdp.hpp"

#include <ATen/record_function.h>
#include <fmt/format.h>

#include <exception>
#include <utility>

#include <zero/base/error.hpp>
#include <zero/base/program.hpp>

namespace zero {

using dist::Purpose;

Hsdp::Hsdp(const train::StrategyArguments& arguments, const OverlapOptions& options,
           std::vector<dist::Mesh::Axis> axes)
    : HsdpMesh{{arguments.communicator, std::move(axes)}},
      Overlap(arguments, options, mesh.along("shard"),
              mesh.along("replica").size() > 1 ? &mesh.along("replica") : nullptr) {}

Hsdp::~Hsdp() {
  // A handle may not be dropped while its transfer is in flight. If a peer is gone, the caller has
  // heard of it from the operation that failed first.
  bool said = std::uncaught_exceptions() > 0;
  for (dist::Work& work : between_groups_) {
    try {
      work.wait();
    } catch (const std::exception& error) {
      if (!said) log_error(fmt::format("rank {}: {}", communicator_.rank(), message_of(error)));
      said = true;
    }
  }
}

void Hsdp::shard_reduced(const train::ReducedShard& shard) {
  if (!has_copies()) return;  // reduced and divided already
  RECORD_USER_SCOPE("hsdp_grad_all_reduce");
  dist::Reduction last = average_;  // groups of one rank have added nothing yet
  if (shard_group().size() > 1) {
    last = dist::Reduction::average_of_sums(communicator_.size(), average_.type);
  }
  between_groups_.push_back(
      replica_group().all_reduce(shard.gradients, shard.sum, Purpose::kGradient, last));
}

void Hsdp::finish_reductions() {
  Overlap::finish_reductions();
  while (!between_groups_.empty()) {
    // Taken out first: after an error the others are still waited for, by the destructor.
    dist::Work oldest = std::move(between_groups_.front());
    between_groups_.pop_front();
    oldest.wait();
  }
}

train::Costs Hsdp::costs() const {
  train::Costs costs = Overlap::costs();
  if (!has_copies()) return costs;
  for (const train::FlatParameters& bucket : buckets()) {
    if (!bucket.trainable()) continue;
    costs.sent += dist::Communicator::all_reduce_bytes(
        bucket.layout().shard(),
        replica_group().reduced_element_size(bucket.dtype(), average_.type), replica_group().rank(),
        replica_group().size());
  }
  return costs;
}

}  // namespace zero
