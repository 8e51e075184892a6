#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include <zero/memory/storage_pool.hpp>
#include <zero/train/flat/flat_parameter_list.hpp>
#include <zero/train/strategy.hpp>

namespace zero {

/// What the three stages of this chapter share: every tensor is split over all ranks. The
/// parameters of each unit lie in a flat buffer (in variant "per_parameter" each has its own), and
/// rank r updates shard r of it. All ranks send and hold the same number of bytes, whatever the
/// sizes of tensors, unless a shard is nothing but padding (below).
///
/// With F the bytes of all padded buffers, at rest a rank holds in float32
///   stage 1:  F of parameters,   F of gradients,   2V/N of AdamW's moments
///   stage 2:  F of parameters,   F/N of gradients, 2V/N of moments
///   stage 3:  F/N of parameters, F/N of gradients, 2V/N of moments
/// (Rajbhandari et al. 2020, section 5.) F is V plus the padding of train::ShardLayout: less than
/// 0.01 % of V for SmolLM2-360M on up to 16 ranks. Padding has no moments, so 2V/N is the mean: the
/// last ranks may have fewer, and no gradient for a shard that is padding alone.
///
/// A parameter that is frozen when the strategy is made is sharded but never updated; the others
/// may be frozen and unfrozen again between steps, on all ranks alike.
class TensorSharding : public train::Strategy {
 public:
  void sync_parameters() override;
  void zero_grad() override;
  train::ParameterWrites collect_writes() override { return flat_.collect_writes(schedule()); }
  void forget_writes() override { flat_.forget_writes(); }

  void bring(std::size_t index) override;
  train::Costs costs() const override;

  /// The buffers, unit by unit, the root's first.
  const std::vector<train::FlatParameters>& buckets() const { return flat_.buffers(); }

 protected:
  /// Called by all ranks: flattens the parameters and gives them rank 0's values. No rank holds
  /// more than one whole buffer at stage 3.
  TensorSharding(const train::StrategyArguments& arguments, const train::FlatOptions& options);

  /// The same as later chapters have it. What they set in `options` is what of a unit is sharded,
  /// how it travels, and what stays allocated.
  using OptionsOfUnit =
      std::function<train::FlatOptions(const nn::ParameterList& list, std::size_t unit)>;
  /// `buffer_bytes`: the most that one buffer holds. `shards`: the ranks that share the model
  /// states. `keeps_freed`: see memory::StoragePool.
  TensorSharding(const train::StrategyArguments& arguments, std::int64_t buffer_bytes,
                 const OptionsOfUnit& options, dist::Communicator& shards, bool keeps_freed);

  void gradient_ready(std::size_t index) override;
  void finish_parameters() override { flat_.wait_gathers(); }
  void keep_writes(std::size_t unit) override { flat_.keep_writes(unit); }
  /// Averages the gradients of a buffer over the ranks: starts, and waits at once. (Chapter 05
  /// computes in between.) Called by all ranks.
  virtual void reduce(std::size_t buffer);

  memory::StoragePool pool_;
  train::FlatParameterList flat_;
};

}  // namespace zero
