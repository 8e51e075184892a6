#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <zero/distributed/mesh.hpp>
#include <zero/engine_config.hpp>
#include <zero/io/save_checkpoint.hpp>
#include <zero/io/weights_fit.hpp>
#include <zero/nn/defer.hpp>
#include <zero/nn/model_units.hpp>
#include <zero/optim/adamw.hpp>
#include <zero/optim/optimizer.hpp>
#include <zero/safetensors/spec.hpp>
#include <zero/step_checks.hpp>
#include <zero/step_gradients.hpp>
#include <zero/step_metrics.hpp>
#include <zero/train/unsharded_parameters.hpp>

namespace zero {

/// How Engine::save() saves; the same on all ranks.
struct SaveOptions {
  std::string position = "";  ///< where the program is in its data, in UTF-8, as it reads it back
  int keep = 1;               ///< the last checkpoints that the folder keeps
  bool behind = false;        ///< copies, and writes while training goes on
};

/// Sharded data-parallel training for a program of your own. Every rank of `mesh` makes one over
/// the same model and calls the same functions:
///
///     zero::Engine engine(*net, *communicator, zero::optim::adamw(), {.stage = 3});
///     for (const auto& [x, y] : batches) {
///       const at::Tensor loss = engine.forward([&] { return criterion(net->forward(x), y); });
///       engine.backward(loss);
///       engine.step();
///     }
///
/// The stage is one number of the configuration; the resulting weights are the same. All functions
/// block until this rank's part is done and throw zero::Error if a peer fails.
///
/// The three calls may come in any order that the plain module and an optimizer of torch::optim
/// allow: several forward()s before the first backward(), forward() of the next batch before
/// step(), losses that are never used. The order of backward() alone decides which micro-batch is
/// which.
///
/// The model must outlive the engine, which sees to that if the model is owned by a
/// std::shared_ptr.
///
/// After step(), parameters at stages 0 to 2 have their new values on every rank. To read a
/// parameter directly at stage 3, or at stages 1 and 2 with
/// ShardingOptions::defer_parameter_gather, hold train::UnshardedParameters.
class Engine {
 public:
  /// Called by all ranks. Each unit of the module is gathered and resharded as a whole. `mesh`: a
  /// communicator, or a dist::Mesh that has the axes over which the model is split. `units` chooses
  /// the units of a module that knows nothing of this library; a nn::Unit has its own. `values`:
  /// first values of parameters that were built by nn::defer(); see train::StrategyArguments.
  /// @throws zero::Error on all ranks if `units` throws on any.
  Engine(torch::nn::Module& module, const dist::Mesh& mesh, optim::OptimizerFactory optimizer,
         const EngineConfig& config = {}, const nn::UnitRule& units = nn::default_units(),
         nn::ParameterSource* values = nullptr);
  /// After an exception in backward() that was caught, does what give_up_step() does: other ranks
  /// may wait for reductions. Completes a save behind; an error is printed, and the program ends
  /// with an exit code that is not 0. While an exception is on its way it does neither, waits for
  /// no other rank, and prints that the save is lost. So does the end of a program in which an
  /// engine still has one; the exit code is then not 0.
  ~Engine();

  /// The loss that `loss` computes with the model, a mean over `loss_terms` terms of this rank's
  /// micro-batch. One of 0 terms counts nothing. Without their number micro-batches count alike;
  /// all of a step say it, on all ranks, or none.
  ///
  ///     const at::Tensor loss = engine.forward([&] { return criterion(net->forward(x), y); });
  at::Tensor forward(const std::function<at::Tensor()>& loss,
                     std::optional<std::int64_t> loss_terms = {});
  /// What `predict` computes with the model, without a graph: its predictions, or a loss. Called by
  /// all ranks, between any two other calls. @throws zero::Error on all ranks at stage 3, in place
  /// of a value, if they ran other units or in another order.
  at::Tensor evaluate(const std::function<at::Tensor()>& predict);

  /// Runs autograd and averages. The gradient of a step is that of the mean over all loss terms
  /// (forward()) of its micro-batches on all ranks; micro-batches that do not say their number have
  /// equal weights. `loss` is what forward() returned, or was computed from it; without loss
  /// terms it may be a loss of the program's own. Ranks exchange a few numbers.
  ///
  /// From the first backward() of a step to its step(), `.grad` of the parameters is the engine's:
  /// a read or a change throws. Only at stage 0 without a loss scale, after the last backward(), it
  /// is the gradient of the step, and may be changed by all ranks alike.
  /// @throws zero::Error on all ranks, before anything has happened, if the step has all its
  /// micro-batches already, if an update came after the forward() of `loss`, if `loss` has no
  /// gradient, if some micro-batches of the step say how many loss terms they have and others do
  /// not, or come from no forward(), if all have 0, if ranks train different parameters, or if
  /// since the first backward() of the step a program has set `.grad` or requires_grad of a
  /// parameter on any rank.
  void backward(const at::Tensor& loss);

  /// After the last micro-batch of a step: clips if configured, updates, and drops the gradients.
  /// After the others it does nothing, so that a loop need not count. Returns whether it updated.
  /// It skips a step in which a gradient is infinite or NaN on any rank, if there is a loss scale
  /// to halve or EngineConfig::on_nonfinite_gradient says so: it drops the gradients, counts
  /// (skipped_steps()) and returns false.
  /// @throws zero::Error if backward() has not been called since the last step(), and on all ranks
  /// if a loss of the step, or else a gradient, was infinite or NaN on any of them, if ranks gave
  /// their optimizers different settings, or if any of them has set `.grad` of a parameter since
  /// backward() where it may not, or others than the rest. The step is then given up: weights and
  /// optimizer states are as before, there are no gradients, and the next forward() may follow.
  bool step();

  /// Drops the step so far, after an error in forward() or backward() that all ranks had at the
  /// same place; the next forward() begins it again. After an exception in the autograd of
  /// backward(), all other functions but load() throw until this is called: one rank may have begun
  /// reductions that another has not.
  void give_up_step();

  /// The averaged gradient of parameter `name`, whole and without the loss scale, between the last
  /// backward() of a step and its step(); zeros if no batch used it. On a tensor axis it is that of
  /// what this rank holds. Called by all ranks; blocks, and sends as much as an all-reduce of it.
  /// @throws zero::Error at another time, if the model has no such trainable parameter, and with an
  /// optimizer that is offloaded, which has taken the gradients by then.
  at::Tensor gradient(const std::string& name);
  /// Calls `callback` at the end of the last backward() of each step, so before clipping, for each
  /// parameter of which this rank updates something. It may change `gradient` in place: masks,
  /// noise. It is flat, multiplied by loss_scale(), and zeros if no batch used it. An empty
  /// callback ends it. Called by all ranks, between steps; throws zero::Error on all of them if
  /// only some pass a callback, and with an optimizer that is offloaded. What the callback throws
  /// on any rank leaves backward() on all.
  void on_gradients(GradientCallback callback);

  /// Calls `callback` on every rank after each step() that ends a step; an empty one ends it. From
  /// then on a step computes the norm. Called by all ranks, between steps; throws zero::Error on
  /// all of them if only some pass a callback. What it throws on any rank leaves step() on all,
  /// after the update.
  void on_step(StepCallback callback);

  /// Norm of the gradient before clipping in the last step that updated; 0 without clipping and
  /// on_step().
  float gradient_norm() const { return step_.gradient_norm(); }
  /// Updates so far.
  std::int64_t steps() const { return step_.updates(); }
  /// Steps skipped so far.
  std::int64_t skipped_steps() const { return step_.skipped(); }
  /// The factor of the next loss; 1 without loss scaling.
  double loss_scale() const { return step_.scale(); }

  /// Writes a checkpoint to `folder`, which all ranks see, and replaces the oldest one if there are
  /// SaveOptions::keep; blocks until it is on the disk. With SaveOptions::behind it blocks only
  /// until this rank has copied what it writes, and until a save before has ended; the first step()
  /// after the files of all ranks are written completes the checkpoint. Called by all ranks, after
  /// a step() that updated. Returns the seconds that it blocked. Throws as io::save_checkpoint()
  /// does, and in the middle of a step. An error of a save behind is one of the next step(),
  /// save(), load() or finish_save(), on all ranks, before that call has done anything: it may be
  /// repeated. Two engines of a program must save to folders of their own.
  double save(const std::filesystem::path& folder, const SaveOptions& options = {});
  /// Completes a save behind; does nothing if there is none. Called by all ranks; blocks. Throws
  /// after an exception in backward(), before give_up_step().
  void finish_save();
  /// SaveOptions::position of the checkpoint that was loaded; empty if there is none.
  const std::string& position() const { return position_; }
  /// Resumes from the checkpoint in `folder` (or the older one whose record `folder` is), at any
  /// world size and whatever stage or chapter wrote it: parameters, the optimizer's states,
  /// steps(). Returns false if there is none. Called by all ranks. Throws as io::load_checkpoint()
  /// does, and if only some ranks see a checkpoint, or if this engine has saved to a folder of its
  /// own and another that lives saves to this one.
  bool load(const std::filesystem::path& folder);

  /// Gives the model these weights, without optimizer states: io::load_weights() of a state dict or
  /// of a safetensors file; `allowed` and what is returned are its. Called by all ranks. Throws as
  /// it does, and in the middle of a step.
  io::WeightsFit load_weights(const safetensors::NamedTensors& weights,
                              const io::WeightsFit& allowed = {});
  io::WeightsFit load_weights(const std::filesystem::path& path,
                              const io::WeightsFit& allowed = {});

  /// Gives the model back, whole and trained, to the program or another engine; see
  /// train::Strategy::release(). Called by all ranks, after a step() that updated.
  void release();

  /// A table of the units: path, number of parameters, bytes.
  std::string units() const;

  /// The strategy that does the work, for evaluation, export, and checkpoints that hold more (pass
  /// it to io::save_checkpoint() and the like).
  train::Strategy& strategy();

 private:
  EngineConfig config_;
  std::shared_ptr<torch::nn::Module> kept_;  // the module, if a shared pointer owns it
  std::unique_ptr<train::Strategy> strategy_;

  // Loss terms of the micro-batches of a step, on all ranks.
  struct Terms {
    double of_first = 0;  // of the first that has any; weights are relative to it until the end
    double all = 0;
    bool stated = true;  // by all batches; otherwise each counts as one
  };
  void begin_forward();
  std::vector<std::optional<double>> exchange(std::optional<double> mine, dist::Statement found);
  Terms with_micro_batch(std::optional<double> mine, const dist::Statement& found);
  void end_step();
  void verify_in_no_step(const char* call) const;
  void verify_backward_ended() const;
  void verify_outside_of_passes(const char* call) const;
  train::Step::Losses losses_of_step();
  void verify_has_gradients() const;

  train::Step step_;
  StepGradients gradients_;
  StepChecks checks_;
  bool backward_threw_ = false;       // in this step
  std::vector<at::Tensor> losses_;    // of this step's micro-batches
  std::vector<double> loss_terms_;    // the same, of this rank
  std::shared_ptr<StepMeter> meter_;  // on_step()
  GradientCallback on_gradients_;
  std::int64_t micro_batches_ = 0;  // of this step, whose backward has run
  Terms terms_;
  bool stepped_ = true;
  bool in_callback_ = false;  // of on_step()
  bool released_ = false;
  std::string position_;
  std::unique_ptr<io::PendingCheckpoint> pending_;
};

}  // namespace zero
