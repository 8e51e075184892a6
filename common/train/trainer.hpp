#pragma once

#include <cstdint>
#include <vector>

#include "zero/data/batch.hpp"
#include "zero/train/strategy.hpp"

namespace zero::train {

/// Where the seconds of a step went, on this rank. Communication is time spent waiting for
/// collectives in any phase; the other phases exclude it.
struct PhaseSeconds {
  double forward = 0;
  double backward = 0;
  double communication = 0;
  double optimizer = 0;
  double total = 0;
};

struct StepResult {
  double loss = 0;          ///< mean over all loss terms of all ranks and micro-batches
  float gradient_norm = 0;  ///< before clipping; 0 where nothing is clipped
  PhaseSeconds seconds;
};

struct TrainerOptions {
  double clip_norm = 0;  ///< largest L2 norm of the gradient; 0: do not clip
};

/// The training loop of every chapter. All ranks call the same functions in the same order.
class Trainer {
 public:
  /// Called by all ranks; zero::Error on all of them if their options differ.
  explicit Trainer(Strategy& strategy, TrainerOptions options = {});

  /// One optimizer step over `micro_batches` of this rank: at least one, and as many on every rank.
  /// Blocks. Ranks may have different numbers of loss terms, also none: the gradient is that of the
  /// mean over all of them. Throws zero::Error on all ranks alike if the loss of any is not finite,
  /// no rank has a loss term, or ranks gave different numbers of micro-batches; parameters and
  /// optimizer states are as before the step then, and the next step may follow.
  StepResult step(const std::vector<data::Batch>& micro_batches);

  /// Drops the gradients, which step() leaves to be looked at. step() does it by itself.
  void zero_grad() { strategy_.zero_grad(); }

  /// Mean loss over the batches of all ranks, without gradients. Every rank gives as many batches
  /// (zero::Error on all ranks otherwise), and at least one of all has a loss term.
  double evaluate(const std::vector<data::Batch>& batches);

  std::int64_t steps() const { return steps_; }

 private:
  struct Agreed {
    double loss_sum;
    double terms;
  };
  Agreed agree(double loss, std::int64_t terms);
  double count_terms(const std::vector<data::Batch>& batches) const;

  Strategy& strategy_;
  TrainerOptions options_;
  std::int64_t steps_ = 0;
};

}  // namespace zero::train
