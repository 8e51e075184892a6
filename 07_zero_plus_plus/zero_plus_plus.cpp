#include "zero_plus_plus.hpp"

#include <ATen/record_function.h>

namespace zero {

ZeroPlusPlus::ZeroPlusPlus(const train::StrategyArguments& arguments,
                           const ZeroPlusPlusOptions& options)
    : ZeroPlusPlus(arguments, options, zero_plus_plus_transfers) {}

ZeroPlusPlus::ZeroPlusPlus(const ZeroPlusPlusOptions& options, const MakeTransfers& make_transfers,
                           const train::StrategyArguments& arguments)
    : Overlap(arguments, options.overlap, arguments.mesh.data(), /*replicas=*/nullptr,
              make_transfers(arguments.mesh, options, [this] { return version_of_gathers(); })) {}

void ZeroPlusPlus::shard_reduced(const train::ReducedShard& shard) {
  if (shard.rest == nullptr) return;  // averaged already
  RECORD_USER_SCOPE("qgz_between_groups");
  between_groups_.push_back(shard.rest->reduce_rest(shard.gradients));
}

}  // namespace zero
