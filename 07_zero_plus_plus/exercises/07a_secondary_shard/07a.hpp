#pragma once

#include <torch/types.h>

#include <zero/distributed/communicator.hpp>

/// hpZ for one weight: N ranks in groups of S, which are hosts.
namespace exercise_07a {

inline constexpr double kLearningRate = 0.1;

struct Ranks {
  zero::dist::Communicator& world;  ///< all N ranks
  zero::dist::Communicator& group;  ///< the S ranks of this rank's host
};

/// What a rank holds of a weight of P elements of float32. N and S divide P.
struct Weight {
  at::Tensor primary;    ///< piece world.rank() of N: the one that is updated and saved
  at::Tensor secondary;  ///< piece group.rank() of S, for backward; undefined if there is none
  int note = 0;          ///< for you, if you need a number beside them
};

/// What an answer consists of. All ranks call each function.
struct Answer {
  /// Returns the whole weight, P elements, for a forward in step `step`: one of training, or an
  /// evaluation after that step's update.
  at::Tensor (*forward_weight)(Ranks ranks, Weight& weight, int step);
  /// The same for the backward of the last forward. Only the ranks of a group talk to each other.
  at::Tensor (*backward_weight)(Ranks ranks, Weight& weight);
  /// Updates the weight. `gradient`: this rank's shard of the average over all ranks.
  void (*update)(Ranks ranks, Weight& weight, const at::Tensor& gradient);
  /// Continues with the weight of a checkpoint: `saved` has all P elements.
  void (*load)(Ranks ranks, Weight& weight, const at::Tensor& saved);
};

}  // namespace exercise_07a
