#pragma once

#include <zero/train/owners.hpp>
#include <zero/train/strategy.hpp>

namespace zero {

/// ZeRO stage 2: like stage 1, and a gradient stays only on the rank that owns its parameter.
///
/// At rest a rank holds V of parameters, on average V/N of gradients and 2V/N of AdamW's moments. A
/// step sends what stage 1 sends. (Rajbhandari et al. 2020, sections 5.2 and 7.2.1.) Variants:
///   "during" (default)  each gradient goes to its owner as soon as backward has made it, and is
///                       freed elsewhere: the peak falls as well
///   "after"             all gradients go when backward is over: same bytes at rest, full peak
///   "placeholder"       as "during", by a reduce-scatter in which all pieces except the owner's
///                       are zeros, as published elsewhere: (N-1) V on the wire for gradients
class Zero2Sharding : public train::Strategy {
 public:
  /// Called by all ranks: rank 0's parameters and buffers are sent to all.
  explicit Zero2Sharding(const train::StrategyArguments& arguments);

  void sync_parameters() override;

  train::Costs costs() const override;

 private:
  void reduce_to_owner(std::size_t index);

  bool after_;
  bool placeholders_;
  train::Owners owners_;
};

}  // namespace zero
