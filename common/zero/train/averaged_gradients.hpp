#pragma once

#include <torch/types.h>

#include <cstddef>
#include <optional>
#include <vector>

#include <zero/optim/norm.hpp>

namespace zero::train {

class Strategy;

/// An averaged gradient that is infinite or NaN somewhere.
struct NonfiniteGradient {
  std::size_t parameter;   ///< the first such in Strategy::list()
  std::vector<int> ranks;  ///< whose gradients were so before they were averaged; if the
                           ///< communicator does not check: that hold the average
};

/// The averaged gradients of a strategy, of which this rank has those that it updates: their norm,
/// and whether all of them are finite. All ranks call the same functions, after finish_backward()
/// of the last micro-batch, and get the same answers.
class AveragedGradients {
 public:
  /// `strategy` must outlive this object. `adds_averages`: micro-batches are averaged one by one
  /// and then added up.
  AveragedGradients(Strategy& strategy, bool adds_averages);

  /// Scales the gradients so that their norm is at most `max_norm`; returns the norm before. Norms
  /// are of the gradients divided by `loss_scale`. Exact: the same bits under every strategy that
  /// owns whole parameters, and with rare exceptions of rounding where tensors are split. Gradients
  /// of double are multiplied by a factor in double. Where the norm is infinite or NaN the
  /// gradients stay as they are.
  float clip(double max_norm, optim::Norm kind, double loss_scale);

  void multiply(double factor) { multiply(factor, factor); }

  /// The first gradient that is not finite, if any. Takes no time if reductions have checked while
  /// they added up (dist::Communicator::checks_gradients()) and found nothing; else reads every
  /// gradient that this rank updates, on its device.
  std::optional<NonfiniteGradient> first_nonfinite();

  /// Whether reductions on this rank have found a value that is not finite since the last call. Not
  /// a collective.
  bool take_suspicion();
  /// Notes that reductions on some rank have.
  void suspect() { suspect_ = true; }

  /// Call when the gradients are dropped.
  void forget();

 private:
  struct Own {
    std::vector<std::size_t> indices;
    std::vector<at::Tensor> gradients;
  };
  Own own() const;
  std::vector<double> contributions(const Own& own, optim::Norm kind);
  std::vector<double> sums_by_parameter(optim::Norm kind);
  double norm(optim::Norm kind);
  double largest_over_ranks();
  void multiply(double factor, double factor_of_doubles);
  std::size_t first_nonfinite_here();

  Strategy& strategy_;
  bool adds_averages_;
  std::vector<bool> sources_;  // by rank: whose gradients were not finite, as seen by this rank
  bool suspect_ = false;       // on all ranks
};

}  // namespace zero::train
