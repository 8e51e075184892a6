#pragma once

#include <torch/types.h>

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include <zero/optim/norm.hpp>

namespace zero::train {

class Strategy;

/// An averaged gradient that is infinite or NaN somewhere.
struct NonfiniteGradient {
  std::string parameter;   ///< the name of the first such, in the order of Strategy::list()
  std::vector<int> ranks;  ///< whose gradients were so before they were averaged; if the
                           ///< communicator does not check: that hold the average
};

/// The parts of a model that other ranks train, if the strategy's ranks have only one part of it: a
/// stage of a pipeline. The ranks of all parts call the same functions in the same order and get
/// the same answers; each call blocks.
class OtherParts {
 public:
  virtual ~OtherParts() = default;
  /// Numbers by parameter of the whole model, in its order, from those of this part's parameters,
  /// in the order of Strategy::list().
  virtual std::vector<double> of_all_parameters(const std::vector<double>& mine) = 0;
  /// Which of the parts' finds is the first in the order of the whole model.
  virtual std::optional<NonfiniteGradient> first_nonfinite(
      const std::optional<NonfiniteGradient>& mine) = 0;
};

/// The averaged gradients of a strategy, of which this rank has those that it updates: which exist,
/// their sum over micro-batches, their norm, and whether all of them are finite. All ranks call the
/// same functions and get the same answers.
class AveragedGradients {
 public:
  /// `strategy` must outlive this object. `adds_averages`: micro-batches are averaged one by one
  /// and then added up.
  AveragedGradients(Strategy& strategy, bool adds_averages);

  /// From now on the norm, clipping and first_nonfinite() are about the whole model, of which the
  /// strategy has a part. `others` is not owned; null: the strategy has the whole model.
  void set_other_parts(OtherParts* others) { others_ = others; }

  bool adds_averages() const { return adds_averages_; }

  /// Notes whether this rank's backward made a gradient of parameter `index`.
  void note_used(std::size_t index, bool used) { used_[index] = used; }
  /// Call after a reduction. Drops the gradients of parameters that no rank used (a small
  /// all-reduce finds them) and adds up micro-batches that are averaged one by one. Before the last
  /// micro-batch the sums are not in `.grad`, where backward would add to them. Blocks.
  void complete(bool is_last_micro_batch);

  // After complete() of the last micro-batch:

  /// The losses given to backward() are multiplied by `scale` from now on (see loss_scale.hpp), so
  /// gradients are too large by that factor, and the optimizer divides by it. Acts on this rank
  /// alone; all ranks must set the same. Throws zero::Error if the optimizer cannot
  /// (optim::Optimizer::set_gradient_scale()).
  void set_loss_scale(double scale);

  /// Scales the gradients so that their norm is at most `max_norm`; returns the norm before. Norms
  /// are of the gradients divided by the loss scale. Exact: the same bits under every strategy that
  /// owns whole parameters, and with rare exceptions of rounding where tensors are split. Gradients
  /// of double are multiplied by a factor in double. Where the norm is infinite or NaN the
  /// gradients stay as they are.
  float clip(double max_norm, optim::Norm kind);

  void multiply(double factor);

  /// The first gradient that is not finite, if any. Takes no time if reductions have checked while
  /// they added up (dist::Communicator::checks_gradients()) and found nothing; else reads every
  /// gradient that this rank updates, on its device.
  std::optional<NonfiniteGradient> first_nonfinite();

  /// Call when the gradients are dropped, or an unfinished step is abandoned.
  void forget();

 private:
  struct Own {
    std::vector<std::size_t> indices;
    std::vector<at::Tensor> gradients;
  };
  at::Tensor& gradient_of(std::size_t index) const;
  Own own() const;
  bool take_suspicion();
  void drop_unused();
  void add_up(bool is_last_micro_batch);
  std::vector<double> contributions(const Own& own, optim::Norm kind);
  std::vector<double> sums_by_parameter(optim::Norm kind);
  double norm(optim::Norm kind);
  double largest_over_ranks();
  void multiply(double factor, double factor_of_doubles);
  std::size_t first_nonfinite_here();
  std::optional<NonfiniteGradient> first_nonfinite_of_part();

  Strategy& strategy_;
  bool adds_averages_;
  OtherParts* others_ = nullptr;
  double loss_scale_ = 1;
  std::vector<bool> used_;               // by parameter: by this rank, in this reduction
  std::vector<at::Tensor> accumulated_;  // by parameter: averages of earlier micro-batches
  std::vector<bool> sources_;  // by rank: whose gradients were not finite, as seen by this rank
  bool suspect_ = false;       // some gradient may not be finite; the same on all ranks
};

}  // namespace zero::train
