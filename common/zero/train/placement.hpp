#pragma once

#include <torch/types.h>

#include <cstdint>
#include <vector>

#include <zero/distributed/communicator.hpp>

namespace zero::train {

/// Consecutive elements of one parameter.
struct ParameterShard {
  at::Tensor tensor;       ///< undefined if there are none
  std::int64_t begin = 0;  ///< index of the first in the flattened parameter
};

/// What a rank has of one parameter, from the constructor of its strategy to release().
struct Placement {
  /// What it updates: the optimizer holds this tensor, and after finish_backward() its `.grad` is
  /// the averaged gradient. Of a frozen parameter chapters 00 to 03 have it too, because that may
  /// be unfrozen; in flat buffers of stages 1 to 3 there is none.
  ParameterShard updated;
  /// What it keeps between steps, whether it updates it or not: a checkpoint restores it. All of
  /// the parameter if the stage keeps parameters whole.
  ParameterShard kept;
  /// What a checkpoint gets from it: the ranks that share the model states have each element once,
  /// also of a parameter that none of them updates.
  ParameterShard saved;
};

/// Those of all parameters.
struct Placements {
  std::vector<Placement> of;  ///< by parameter
  /// The ranks among which model states are sharded: each element is updated by one of them. Ranks
  /// outside of the group hold copies. Null if every rank updates everything.
  dist::Communicator* group = nullptr;

  /// How many ranks each have a part of the model states.
  int parts() const { return group == nullptr ? 1 : group->size(); }
};

}  // namespace zero::train
