#pragma once

#include <memory>

#include "batch_model.hpp"

namespace zero::testing {

/// A model made to trap sharding code: a weight tied across units, a frozen parameter, one that
/// some batches do not use (in the root, in a unit, and in one of a unit's two uses) and one that
/// no batch uses, odd sizes, a scalar, a parameter smaller than the world size, a unit used twice,
/// a unit without trainable parameters, ordinary autograd beside layers that write their gradients
/// in place, and a unit of layers of which one is used twice, one is frozen, and one is looked up
/// and multiplied with.
class EdgeCaseModel : public BatchModel {
 public:
  static constexpr std::int64_t kInputs = 5;
  static constexpr std::int64_t kWidth = 7;

  EdgeCaseModel();

  at::Tensor loss(const data::Batch& batch) override;
  at::Tensor predict(const data::Batch& batch);

 private:
  struct Inner;
  struct Frozen;
  struct Layers;

  at::Tensor tied_;       // [7, 5], used here and in the last unit's place
  at::Tensor scale_;      // a scalar
  at::Tensor few_;        // 3 elements: fewer than 4 ranks
  at::Tensor sometimes_;  // used by batches whose first target is positive
  at::Tensor never_;
  std::shared_ptr<Inner> twice_;
  std::shared_ptr<Inner> last_;
  std::shared_ptr<Frozen> frozen_;
  std::shared_ptr<Layers> layers_;
};

/// Batches for it, different for every (seed, rank, step): [4, 5] inputs and [4, 1] targets in
/// float. The first target's sign alternates over rank + step.
data::Batch edge_case_batch(std::uint64_t seed, int rank, int step);

}  // namespace zero::testing
