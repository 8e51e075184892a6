#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <zero/train/reduction_schedule.hpp>
#include <zero/train/strategy.hpp>

#include "sharded_group.hpp"

namespace zero {

/// What the three stages of this chapter share: every tensor split over every rank. Each unit's
/// parameters lie in a flat buffer (or each in its own, variant "per_parameter"), of which rank r
/// updates shard r. All ranks send the same number of bytes, whatever the sizes of tensors, and
/// hold the same but for what padding does without (below).
///
/// With F the bytes of all padded buffers, at rest a rank holds in float32
///   stage 1:  F of parameters,   F of gradients,   2V/N of AdamW's moments
///   stage 2:  F of parameters,   F/N of gradients, 2V/N of moments
///   stage 3:  F/N of parameters, F/N of gradients, 2V/N of moments
/// (Rajbhandari et al. 2020, section 5.) F is V and the padding of train::ShardLayout; with
/// SmolLM2-360M on up to 16 ranks less than 0.01 % of V. Padding has no moments, so 2V/N is the
/// mean: the last ranks may have fewer, and no gradient for a shard that is padding alone.
///
/// A parameter that is frozen when the strategy is made is sharded but never updated; the others
/// may be frozen and unfrozen again between steps, on all ranks alike.
class TensorSharding : public train::Strategy {
 public:
  void zero_grad() override;

  bool owns(std::size_t index) const override { return piece(index).tensor.defined(); }
  train::ParameterShard piece(std::size_t index) const override;
  train::ParameterShard local_shard(std::size_t index) const override;
  bool sharded() const override { return true; }

 protected:
  /// Called by all ranks: builds the groups and gives them rank 0's values. `split`: only the
  /// shards stay, and no rank ever holds more than one whole group. Units are leaves in variant
  /// "leaf".
  TensorSharding(const train::StrategyArguments& arguments, bool split);
  ~TensorSharding() override;

  /// Called inside backward() when the gradients of all trainable members of a group are there. Not
  /// called for a group with a member that this rank's batch did not use: it goes later, when
  /// backward is over with its unit, or with everything.
  virtual void group_ready(std::size_t group) {}
  void gradient_ready(std::size_t index) override;

  /// Averages the gradients of a group; see ShardedGroup::reduce_scatter.
  virtual void reduce(std::size_t group, bool keep_full);
  /// Notes for complete_reduction() which members have gradients here. False where no member is
  /// trainable at the moment.
  bool note_members(std::size_t group);
  /// How many parameters of a group are trainable at the moment.
  std::size_t trainable_members(std::size_t group) const;
  /// Makes the parameters of trainable groups whole after every rank has updated its shards. All
  /// gathers are started before the first is waited for. Called by all ranks; blocks.
  void gather_updated();
  /// The end of a backward pass: forgets which gradients came.
  void forget_arrivals() { arrived_.assign(arrived_.size(), 0); }

  std::vector<ShardedGroup>& groups() { return groups_; }
  const std::vector<ShardedGroup>& groups() const { return groups_; }
  const std::vector<std::size_t>& groups_of(std::size_t unit) const { return by_unit_[unit]; }
  std::size_t group_of(std::size_t index) const { return where_[index].group; }
  /// Trainable groups, last first: about the order in which backward ends with them.
  std::vector<std::size_t> backward_groups() const;

  /// Bytes of a rank's shard of all groups, or of the trainable ones.
  std::int64_t shard_bytes(bool trainable_only) const;
  /// Bytes of the averaged gradients that stay on this rank: its shards, but for those that hold
  /// nothing but padding, which nobody keeps.
  std::int64_t gradient_shard_bytes() const;
  /// Bytes of a rank's shard of all trainable groups as they travel when gradients are reduced.
  std::int64_t reduced_shard_bytes() const;

 private:
  struct Place {
    std::size_t group;
    std::size_t member;
  };

  void build_groups(bool one_per_parameter);
  void initialize(ShardedGroup& group, bool split);

  std::vector<ShardedGroup> groups_;
  std::vector<Place> where_;                       // by parameter
  std::vector<std::vector<std::size_t>> by_unit_;  // groups of each unit
  std::vector<std::size_t> arrived_;               // by group: gradients that have come
};

}  // namespace zero
