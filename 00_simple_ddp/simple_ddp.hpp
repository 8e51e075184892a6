#pragma once

#include <cstdint>
#include <functional>

#include <zero/train/strategy.hpp>

namespace zero {

/// Data parallelism in its simplest form: every rank holds the whole model, computes gradients on
/// its own batch, and all ranks average them before each makes the same update.
///
/// At rest a rank holds V of parameters, V of gradients and 2V of AdamW's moments. A step sends
/// 2V (N-1)/N per rank (Rajbhandari et al. 2020, section 7.1).
///
/// Variants: "per_parameter" (one all-reduce each), "flat" (one all-reduce of everything, through a
/// buffer as large as the gradients).
class SimpleDdp : public train::Strategy {
 public:
  /// Called by all ranks: rank 0's parameters and buffers are sent to all. Throws zero::Error for
  /// "flat" if parameters have several dtypes.
  explicit SimpleDdp(const train::StrategyArguments& arguments);

  at::Tensor forward(const data::Batch& batch) override;
  void finish_backward() override;

  /// Averages the gradients. Must leave the mean over ranks in every gradient.
  using GradientSync = std::function<void(SimpleDdp&)>;
  void set_gradient_sync(GradientSync sync) { gradient_sync_ = std::move(sync); }

  /// Runs before every forward; nothing by default.
  using PreForward = std::function<void(SimpleDdp&)>;
  void set_pre_forward(PreForward pre_forward) { before_forward_ = std::move(pre_forward); }

  /// The two gradient syncs of this chapter.
  void average_one_by_one();
  void average_flat();

  train::ModelStateBytes predicted_bytes() const override;
  std::int64_t predicted_traffic() const override;

 private:
  void require_one_dtype() const;

  bool flat_;
  GradientSync gradient_sync_;
  PreForward before_forward_;
};

}  // namespace zero
