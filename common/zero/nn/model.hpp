#pragma once

#include <torch/types.h>

#include <zero/data/batch.hpp>
#include <zero/nn/unit.hpp>

namespace zero::nn {

struct WholeModel;

/// A model that the trainer can train: the root unit, with its own loss. A strategy calls no other
/// function of a model, so your own model needs only these two.
///
/// Both run inside the root's run(), between the root's hooks: the root's parameters are whole
/// while they are used, and the loss is the root's output.
class Model : public Unit {
 public:
  /// Forward on one micro-batch. Returns the loss, a scalar that requires a gradient: the mean over
  /// the batch's loss terms (data::Batch::loss_terms), 0 if there are none.
  virtual at::Tensor loss(const data::Batch& batch) = 0;

  /// Forward without a loss: returns the model's prediction for each input. Ignores targets, which
  /// may be undefined. Call it under at::NoGradGuard unless a gradient is wanted.
  virtual at::Tensor predict(const data::Batch& batch) = 0;

  /// Runs what the program computes with the model: strategies call it.
  virtual at::Tensor run_forward(const std::function<at::Tensor()>& pass) { return pass(); }
  /// Runs a backward of a loss: strategies call it.
  virtual void run_backward(const std::function<void()>& backward) { backward(); }
  /// Whether a strategy needs the hooks of inner units; PlainModel then watches for them.
  virtual void watch_units(bool /*watch*/) {}
  /// The module whose parameters and buffers are the model's, by their names.
  virtual torch::nn::Module& module() { return *this; }
  /// Whether that is another module than this (PlainModel).
  bool is_plain() { return &module() != this; }

  /// The model that this one is a stage of (parameters.hpp); null if it is whole itself.
  virtual const WholeModel* whole_model() const { return nullptr; }
};

}  // namespace zero::nn
