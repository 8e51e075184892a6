#pragma once

#include <algorithm>
#include <vector>

namespace exercise_09a {

/// What a stage of a pipeline does with a micro-batch.
enum class Kind {
  kForward,   ///< first waits for the activations of the stage before it, if there is one
  kBackward,  ///< first waits for the gradients of the stage behind it, if there is one
};

struct Action {
  Kind kind;
  int micro_batch;
};

/// What an answer consists of.
struct Answer {
  /// Returns the actions of stage `stage` (0 to `stages` - 1) in one step, in order.
  std::vector<Action> (*actions)(int stage, int stages, int micro_batches);
};

}  // namespace exercise_09a
