#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include <zero/distributed/communicator.hpp>
#include <zero/engine/engine_config.hpp>
#include <zero/nn/model.hpp>
#include <zero/optim/adamw.hpp>
#include <zero/optim/optimizer.hpp>
#include <zero/train/strategy.hpp>

namespace zero {

/// Sharded data-parallel training for a program of your own. Every rank of `communicator` makes one
/// over the same model and calls the same functions:
///
///     zero::Engine engine(model, *communicator, zero::optim::adamw(), {.overlap = {.stage = 3}});
///     for (const zero::data::Batch& batch : batches) {
///       const at::Tensor loss = engine.forward(batch);
///       engine.backward(loss);
///       engine.step();
///     }
///
/// Which stage trains is one number of the configuration; the weights that come out are the same.
/// All functions block until this rank's part is done and throw zero::Error where a peer fails.
///
/// The three calls may come in any order that the plain module and an optimizer of torch::optim
/// allow: several forward()s before the first backward(), forward() of the next batch before
/// step(), losses that are never used. Only backward() decides which micro-batch is which.
///
/// After step() parameters at stages 0 to 2 have their new values on every rank. At stage 3, and at
/// stages 1 and 2 with OverlapOptions::defer_parameter_gather, whoever reads a parameter directly
/// does it under train::UnshardedParameters.
class Engine {
 public:
  /// Called by all ranks. The model's units are what is gathered and resharded together. `values`:
  /// first values of parameters that were built without storage, asked on rank 0 only.
  Engine(nn::Model& model, dist::Communicator& communicator, optim::OptimizerFactory optimizer,
         const EngineConfig& config = {}, nn::ParameterSource* values = nullptr);

  /// Loss of this rank's micro-batch, as Model::loss() gives it.
  at::Tensor forward(const data::Batch& batch);

  /// Runs autograd and averages. The gradient of a step is that of the mean over all loss terms
  /// (data::Batch::loss_terms) of its micro-batches on all ranks, as train::Trainer's;
  /// micro-batches that have none on any rank count alike. `loss` is what forward() returned, or
  /// was computed from it. Ranks exchange one number.
  /// @throws zero::Error, before anything has happened, where the step has all its micro-batches
  /// already, where an update came after the forward() of `loss`, and where earlier micro-batches
  /// of the step had no loss terms on any rank and this one has.
  void backward(const at::Tensor& loss);

  /// After the last micro-batch of a step: clips if asked to, updates, and drops the gradients.
  /// After the others it does nothing, so that a loop need not count. Says whether it updated.
  /// It leaves a step out where a gradient is infinite or NaN on any rank and there is a loss scale
  /// to halve, or EngineConfig::on_nonfinite_gradient says so: it drops the gradients, counts
  /// (skipped_steps()) and says that it did not update.
  /// @throws zero::Error where backward() has not been called since the last step(), and on all
  /// ranks where a loss of the step, or else a gradient, was infinite or NaN on any of them, or
  /// ranks have given their optimizers different settings: the step is given up then, weights and
  /// optimizer states are as before, there are no gradients, and the next forward() may follow.
  bool step();

  /// Drops what the step has so far, after an error in forward() or backward() that all ranks have
  /// had at the same place; the next backward() begins the step anew.
  void give_up_step();

  /// Norm of the gradient before clipping in the last step that updated; 0 where nothing is
  /// clipped.
  float gradient_norm() const { return gradient_norm_; }
  /// Updates so far.
  std::int64_t steps() const { return steps_; }
  /// Steps that were left out so far.
  std::int64_t skipped_steps() const { return skipped_steps_; }
  /// What the next loss is multiplied by; 1 without loss scaling.
  double loss_scale() const { return loss_scale_ ? loss_scale_->value() : 1; }

  /// Writes a checkpoint to `folder`, which all ranks see, in place of the one that is there;
  /// blocks until it is on the disk. Called by all ranks, after a step() that updated. Throws as
  /// io::save_checkpoint() does, and where a step is half done.
  void save(const std::filesystem::path& folder);
  /// Goes on from the checkpoint in `folder`, at any world size and whatever stage or chapter has
  /// written it: parameters, the optimizer's states, steps(). False where there is none. Called by
  /// all ranks. Throws as io::load_checkpoint() does, and where ranks do not see the same.
  bool load(const std::filesystem::path& folder);

  /// Gives the model back, whole and trained, to the program or another engine; see
  /// train::Strategy::release(). Called by all ranks, after a step() that updated.
  void release();

  /// What does the work, for evaluation, export, and checkpoints that say more
  /// (io::save_checkpoint() and the like take it).
  train::Strategy& strategy() { return *strategy_; }

 private:
  EngineConfig config_;
  std::unique_ptr<train::Strategy> strategy_;

  // Loss terms of the micro-batches of a step, on all ranks.
  struct Terms {
    double of_first = 0;  // what weights are relative to until all are known
    double all = 0;
    bool stated = true;  // by the batches; else each counts as one
  };
  Terms with_micro_batch(double& mine) const;
  void verify_before_update();
  bool update();

  std::vector<at::Tensor> losses_;  // of this step's micro-batches
  std::int64_t micro_batches_ = 0;  // of this step, whose backward has run
  Terms terms_;
  bool stepped_ = true;
  float gradient_norm_ = 0;
  std::int64_t steps_ = 0;
  std::int64_t skipped_steps_ = 0;
  std::optional<train::LossScale> loss_scale_;
};

}  // namespace zero
