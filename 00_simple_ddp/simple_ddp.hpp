#pragma once

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

  void finish_backward() override;
  train::Costs costs() const override;

 protected:
  /// Replaces the gradient of one parameter by its average over all ranks.
  virtual void average(const at::Tensor& gradient);

 private:
  void require_one_dtype() const;
  void average_one_by_one();
  void average_flat();

  bool flat_;
};

}  // namespace zero
