#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>

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
/// All functions block until this rank's part is done and throw zero::Error where a peer fails, but
/// for one thing: at stages 1 and 2 step() returns with updated parameters still on their way. The
/// next forward() waits for those of each unit, and so do save() and load(); who reads a parameter
/// directly, at any stage above 0, does it under train::UnshardedParameters.
class Engine {
 public:
  /// Called by all ranks. The model's units are what is gathered and resharded together. `values`:
  /// first values of parameters that were built without storage, asked on rank 0 only.
  Engine(nn::Model& model, dist::Communicator& communicator, optim::OptimizerFactory optimizer,
         const EngineConfig& config = {}, nn::ParameterSource* values = nullptr);

  /// Loss of this rank's micro-batch, as Model::loss() gives it.
  at::Tensor forward(const data::Batch& batch);

  /// Runs autograd and starts averaging. The gradient of a step is the mean over its micro-batches
  /// and over ranks: all of them count alike.
  void backward(const at::Tensor& loss);

  /// After the last micro-batch of a step: clips if asked to, updates, and drops the gradients.
  /// After the others it does nothing, so that a loop need not count. Says whether it updated.
  /// With loss scaling it leaves a step out where a gradient overflowed on any rank: halves the
  /// scale, drops the gradients and says that it did not update.
  /// @throws zero::Error where backward() has not been called since the last step(), and on all
  /// ranks where a loss of the step was infinite or NaN on any of them: the step is given up then,
  /// weights and optimizer states are as before, and the next forward() may follow.
  bool step();

  /// Drops what the step has so far, after an error in forward() or backward() that all ranks have
  /// had at the same place; the next forward() begins the step anew.
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
  void check_losses();
  bool update();

  std::vector<at::Tensor> losses_;  // of this step's micro-batches
  std::int64_t micro_batches_ = 0;  // of this step, whose backward has run
  bool stepped_ = true;
  float gradient_norm_ = 0;
  std::int64_t steps_ = 0;
  std::int64_t skipped_steps_ = 0;
  std::optional<train::LossScale> loss_scale_;
};

}  // namespace zero
