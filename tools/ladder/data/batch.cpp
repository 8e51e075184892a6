#include "batch.hpp"

#include <zero/distributed/agreement.hpp>

namespace zero::data {

std::uint64_t digest(const Batch& batch, std::uint64_t before) {
  const std::uint64_t h = dist::digest({batch.inputs, batch.targets, batch.lengths}, before);
  return (h ^ static_cast<std::uint64_t>(batch.loss_terms)) * 1099511628211ULL;
}

}  // namespace zero::data
