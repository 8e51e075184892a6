#pragma once

#include <torch/types.h>

#include <vector>

#include <zero/distributed/communicator.hpp>

/// A small ZeRO-3: rank `layer` modulo N owns both weights of a layer. On other ranks they are
/// undefined, except between gather() and reshard().
namespace exercise_03c {

inline constexpr int kLayers = 4;
inline constexpr std::int64_t kShapes[kLayers][2] = {{6, 9}, {9, 7}, {7, 8}, {8, 3}};
inline constexpr double kLearningRate = 0.1;

/// A layer computes tanh(x main), or tanh(x main + x extra) for a batch that takes its branch.
struct Model {
  std::vector<at::Tensor> main, extra;  // by layer
};

/// What a rank trains on in a step.
struct Batch {
  at::Tensor inputs, targets;
  std::vector<bool> takes_branch;  // by layer
};

/// Sends both weights of a layer from their owner to all ranks. Called by all ranks.
inline void gather(zero::dist::Communicator& communicator, Model& model, int layer) {
  const int owner = layer % communicator.size();
  for (at::Tensor* const weight : {&model.main[layer], &model.extra[layer]}) {
    if (owner != communicator.rank()) *weight = at::empty(kShapes[layer]);
    communicator.broadcast(*weight, owner, zero::dist::Purpose::kParameter).wait();
  }
}

/// Drops them again, except on their owner.
inline void reshard(zero::dist::Communicator& communicator, Model& model, int layer) {
  if (layer % communicator.size() == communicator.rank()) return;
  model.main[layer].reset();
  model.extra[layer].reset();
}

/// What an answer consists of.
struct Answer {
  /// One step of gradient descent: each weight loses kLearningRate times its gradient, averaged
  /// over all ranks. Called by all ranks, each with its own batch.
  void (*train_step)(zero::dist::Communicator& communicator, Model& model, const Batch& batch);
};

}  // namespace exercise_03c
