#pragma once

#include <torch/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <zero/distributed/mesh.hpp>
#include <zero/nn/parameters.hpp>
#include <zero/optim/norm.hpp>
#include <zero/optim/optimizer.hpp>
#include <zero/train/placement.hpp>
#include <zero/train/stage_of_model.hpp>

namespace zero::train {

/// An averaged gradient that is infinite or NaN somewhere.
struct NonfiniteGradient {
  std::string parameter;   ///< the name of the first such, in the order of the model
  std::vector<int> ranks;  ///< those whose gradients were so before the average; if the
                           ///< communicator does not check, those that hold the average
};

/// The averaged gradients of a strategy, of which this rank has those that it updates: which exist,
/// their sum over micro-batches, their norm, and whether all of them are finite. All ranks call the
/// same functions and get the same answers: those of the whole model, on all ranks of the tensor
/// axis and of the pipeline axis too if it is split. Parts of a parameter add to the norm; one that
/// every tensor rank holds counts once.
class AveragedGradients {
 public:
  /// All must outlive this object. `list`: the parameters, and `stage` their places in the whole
  /// model. `placements`: what this rank updates; `optimizer` (made by the first call of clip() or
  /// multiply()) updates it. `type`: of sums over the tensor axis. `adds_averages`: micro-batches
  /// are averaged one by one and then added up.
  AveragedGradients(const nn::ParameterList& list, const StageOfModel& stage,
                    const dist::Mesh& mesh, const Placements& placements,
                    const std::unique_ptr<optim::Optimizer>& optimizer, dist::ReduceType type,
                    bool adds_averages);

  /// Notes whether this rank's backward made a gradient of parameter `index`.
  void note_used(std::size_t index, bool used) {
    used_[index] = used || (adds_averages_ && used_[index]);
  }
  /// Call after a reduction. Adds up micro-batches that are averaged one by one; before the last
  /// one the sums are not in `.grad`, where backward would add to them. After it, drops the
  /// gradients of parameters that no rank used (a small exchange finds them), unless that is left
  /// to report(). Chapter 08: first adds up, over the tensor axis, the gradients of parameters on
  /// the residual stream (nn::TensorPlacement::sums_gradient; Purpose::kGradient). Blocks.
  void complete(bool is_last_micro_batch);
  /// Whether the caller exchanges report() after complete(), from now on. Acts on this rank alone;
  /// all ranks must set the same.
  void leave_to_report(bool leave) { leaves_to_report_ = leave; }

  // After complete() of the last micro-batch:

  /// The losses given to backward() are multiplied by `scale` from now on (see loss_scale.hpp), so
  /// gradients are too large by that factor. Acts on this rank alone; all ranks must set the same.
  void set_loss_scale(double scale) { loss_scale_ = scale; }

  /// The values of `losses`, of one element each. If the gradients are on a device, their norms
  /// come with them: the host waits once, and clip() or first_nonfinite() need not read again. Call
  /// it before these, when the gradients will not change any more; without norms in an evaluation.
  /// Acts on this rank alone; blocks.
  std::vector<double> read(const std::vector<at::Tensor>& losses, bool with_norms = true);

  /// What ranks tell each other of the gradients, beside which parameters they have used: nothing,
  /// whether all are finite, or the norm, which shows that too.
  enum class Ask : std::uint8_t { kNothing, kFinite, kNorm };
  /// This rank's numbers for an exchange of all ranks of all axes, as many on each; after read().
  /// Sends nothing. Takes no time for kFinite if reductions have checked while they added up
  /// (dist::Communicator::checks_gradients()); else reads every gradient that this rank updates.
  std::vector<double> report(Ask ask);
  /// Takes the report()s of all ranks, which are behind the first `begin` numbers of each, by rank
  /// of mesh.world(), and drops the gradients of parameters that no rank used. If all are finite,
  /// clip() and first_nonfinite() send nothing until gradients change. Sends nothing.
  void take(Ask ask, const std::vector<std::vector<double>>& all, std::size_t begin = 0);

  /// Scales the gradients so that their L2 norm is at most `max_norm`; returns the norm before.
  /// Norms are of the gradients divided by the loss scale. All strategies that own whole parameters
  /// give the same bits; if tensors are split, rounding differs in rare cases. The factor is a
  /// float, or a double if a trainable parameter of the model is. If the norm is infinite or NaN,
  /// the gradients stay as they are.
  float clip(double max_norm);

  void multiply(double factor);
  /// Call after the gradients have been changed in place, on all ranks.
  void changed();

  /// The first gradient that is not finite, if any. Takes no time if all have said that theirs are
  /// finite; else reads every gradient that this rank updates, on its device.
  std::optional<NonfiniteGradient> first_nonfinite();

  /// Call when the gradients are dropped, or an unfinished step is abandoned.
  void forget();

 private:
  static constexpr std::size_t kBits = 32;  // flags in a number of a report
  struct Own {
    std::vector<std::size_t> indices;
    std::vector<at::Tensor> gradients;
  };
  const at::Tensor& updated(std::size_t index) const {
    return placements_.of[index].updated.tensor;
  }
  at::Tensor& gradient_of(std::size_t index) const;
  Own own() const;
  void exchange(Ask ask);
  void add_up_over_tensor_axis();
  bool take_suspicion();
  void add_up(bool is_last_micro_batch);
  void note_change();
  optim::WideSum sum_of_squares() const;
  void scale(double factor);
  bool has_doubles() const;
  std::size_t first_nonfinite_here();
  bool must_look() const;

  const nn::ParameterList& list_;
  const StageOfModel& stage_;
  const dist::Mesh& mesh_;
  const Placements& placements_;
  const std::unique_ptr<optim::Optimizer>& optimizer_;
  dist::ReduceType type_;
  bool adds_averages_;
  double loss_scale_ = 1;
  bool leaves_to_report_ = false;
  std::vector<bool> used_;               // by parameter: by this rank in this step
  std::vector<at::Tensor> accumulated_;  // by parameter: averages of earlier micro-batches
  std::vector<bool> sources_;    // by rank: whose gradients were not finite, as seen by this rank
  std::vector<double> squares_;  // their sums, of own(), if read() has read them; else empty
  bool suspect_ = false;         // a sum was not finite
  bool changed_ = false;         // finite gradients may have overflowed since
  // Of all ranks, since the gradients have last changed:
  bool finite_ = false;
  std::optional<double> norm_;
};

}  // namespace zero::train
