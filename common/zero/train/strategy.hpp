#pragma once

#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <zero/distributed/mesh.hpp>
#include <zero/train/averaged_gradients.hpp>
#include <zero/train/backward/autograd_passes.hpp>
#include <zero/train/costs.hpp>
#include <zero/train/held_model.hpp>
#include <zero/train/parameter_writes.hpp>
#include <zero/train/placement.hpp>
#include <zero/train/stage_of_model.hpp>
#include <zero/train/strategy_arguments.hpp>

namespace zero::train {

/// One way to train a model on several ranks, and the one interface between a chapter and
/// everything else. A step is
///
///     loss = forward(pass)       for each micro-batch
///     backward(loss)             with set_requires_gradient_sync() before it
///     finish_backward()
///     optimizer_step()
///     sync_parameters()
///     zero_grad()                may come later: gradients stay readable until then
///
/// All ranks must call all functions except plain getters and bring(), in the same order. Each call
/// blocks until this rank's part is done, and throws zero::Error when a peer fails.
///
/// A chapter derives a class. Its constructor says what this rank keeps (shard_optimizer()) and
/// when gradients are reduced, and it overrides what its stage does in another way: chapter 00
/// little more than finish_backward().
///
/// Chapter 08 splits a model over a tensor axis (nn/tensor_parallel.hpp). Then a strategy works on
/// what this tensor rank holds, its communicator() is the data axis, and all ranks of the mesh
/// call.
class Strategy {
 public:
  virtual ~Strategy();
  Strategy(const Strategy&) = delete;
  Strategy& operator=(const Strategy&) = delete;

  // A step, in the order of its calls.

  /// What `pass` computes with the model, a loss of `loss_terms` terms (none: not said); without a
  /// graph (at::NoGradGuard) predictions, or any tensor. @throws zero::Error on all ranks, at
  /// stages that gather units, if ranks gather different ones: see naming().
  virtual at::Tensor forward(const std::function<at::Tensor()>& pass,
                             std::optional<std::int64_t> loss_terms = {});
  /// Runs autograd; hooks fire inside. Call it once before each finish_backward() that reduces
  /// (zero::Error otherwise). The loss may come from several forward()s, and others may have run
  /// since; if the weights have changed since one of these, throws zero::Error, before anything has
  /// happened. See AutogradPasses for another backward() that passes through the model.
  virtual void backward(const at::Tensor& loss);
  /// Waits for what is in flight. After the last micro-batch the gradients of what this rank owns
  /// are the average over ranks. An override reduces and then calls Strategy::finish_backward().
  virtual void finish_backward();
  /// Updates what this rank owns.
  virtual void optimizer_step();
  /// Makes parameters whole again if the stage keeps them whole.
  virtual void sync_parameters() {}
  /// Drops all gradients.
  virtual void zero_grad();

  // What else a program may call.

  /// Call before backward(): whether the gradients of this micro-batch are reduced after it
  /// (default: yes). False for all micro-batches of a step except the last.
  void set_requires_gradient_sync(bool sync) { requires_gradient_sync_ = sync; }
  /// Scales the gradients so that their global L2 norm is at most `max_norm`; returns the norm
  /// before scaling. See AveragedGradients::clip().
  virtual float clip_grad_norm(double max_norm);
  /// AveragedGradients::set_loss_scale(); the optimizer divides by it. Throws zero::Error if it
  /// cannot (optim::Optimizer::set_gradient_scale()).
  void set_loss_scale(double scale);

  /// Makes the parameters of unit `unit` whole for reading and writing, until reshard() has been
  /// called as often; in forward() and backward() too. UnshardedParameters calls both.
  void unshard(std::size_t unit);
  void reshard(std::size_t unit);
  /// Notes and returns what the program has written into parameters since the last forget_writes(),
  /// in scopes of unshard(); what it has written elsewhere is refused. Chapters 00 to 03 do not
  /// look. These functions send nothing.
  virtual ParameterWrites collect_writes() { return {}; }
  virtual void forget_writes() {}
  /// Throws zero::Error on all ranks if they have written other values, or where a write does not
  /// count. Called by all ranks before the weights leave the engine; blocks.
  void verify_writes();

  /// Calls `change`, which overwrites weights and optimizer states. If it fails on one rank, all
  /// throw an error that begins with `what`, and so do forward(), updates and unshard() until a
  /// later call has succeeded (a checkpoint that is loaded). Called by all ranks; blocks.
  void change_on_all_ranks(const std::string& what, const std::function<void()>& change);
  /// Throws that error: call it before weights are read.
  void verify_weights() const;

  /// Gives the model back: parameters are whole on every rank, in storage of their own, and have no
  /// gradients. This strategy cannot train afterwards; without release() other strategies refuse
  /// the model. Called by all ranks, between steps; blocks. Needs the bytes of the whole model.
  void release();

  // What it is made of.

  /// What this rank updates and keeps of parameter `index`. Before it is read or written, bring();
  /// after a change of it all ranks call passes().weights_changed().
  const Placement& placement(std::size_t index) const { return placements_.of[index]; }
  const Placements& placements() const { return placements_; }
  /// Whether this rank updates any of parameter `index`, and holds its averaged gradient.
  bool owns(std::size_t index) const { return placement(index).updated.tensor.defined(); }
  /// Call before placement(index) is read or written outside of a step: waits for what is in
  /// flight, and fetches what rests elsewhere. Until bring() of another one, or the next pass.
  virtual void bring(std::size_t /*index*/) {}
  /// Bytes of this rank by the formulas of the stage.
  virtual Costs costs() const = 0;

  const nn::ParameterList& list() const { return list_; }
  torch::nn::Module& module() { return module_; }
  /// All ranks that train, by axis.
  const dist::Mesh& mesh() const { return mesh_; }
  /// Those with batches of their own, mesh().data().
  dist::Communicator& communicator() const { return communicator_; }
  /// Where the parameters are in the whole model, if this one is a stage of a pipeline.
  const StageOfModel& stage_of_model() const { return stage_of_model_; }
  optim::Optimizer& optimizer() const { return *optimizer_; }
  /// How gradients are averaged: the operation and the type of the sums.
  const dist::Reduction& reduction() const { return average_; }
  /// Whether every micro-batch is reduced by itself, and averages are added up.
  bool reduces_each() const { return reduces_each_; }
  /// The gradients after finish_backward(): loss scale, norm, whether all are finite.
  AveragedGradients& averaged_gradients() { return averaged_; }
  /// What forward() and backward() run in; shows gradients to an observer.
  AutogradPasses& passes() { return passes_; }

 protected:
  /// Called by all ranks. Throws zero::Error on all, before anything else is sent, that names the
  /// first difference if ranks have other variants, options, parameters or buffers, or if the model
  /// is split over an axis that the mesh does not have.
  explicit Strategy(const StrategyArguments& arguments);

  // What a chapter may override: what it does with a unit. Called while passes run.

  /// Makes the parameters of unit `unit` whole on all ranks. Does nothing if they are. A stage that
  /// rounds what it gathers shows the weights themselves for Gather::kRead. Runs within naming().
  virtual void gather(std::size_t /*unit*/, Gather /*why*/) {}
  /// Drops what this rank does not keep of the unit. Called when nobody uses it any more, which
  /// UnitSchedule::drop() decides.
  virtual void drop(std::size_t /*unit*/) {}
  /// Blocks until no transfer of parameters is in flight, so that they may be read and updated.
  virtual void finish_parameters() {}
  /// Called when nobody holds the unit any more: takes over what the program has written into it.
  virtual void keep_writes(std::size_t /*unit*/) {}
  /// The gradient of trainable parameter `index` is complete. The order may differ between ranks:
  /// reductions follow by reduce_in_backward().
  virtual void gradient_ready(std::size_t /*index*/) {}
  /// How often a step of one micro-batch gathers unit `unit`, for costs(). By default the root is
  /// gathered once, and other units for each use in forward and once for backward.
  virtual std::int64_t gathers(std::size_t unit) const;

  // What its constructor calls.

  /// Sends the first value of every parameter and buffer from rank 0 to all ranks. For stages that
  /// hold the whole model.
  void broadcast_first_values();
  /// Sends that of one parameter to `owner` alone; other ranks allocate nothing. For stages that
  /// hold whole parameters, each on one rank. Rank 0 has the value too, until it is released.
  void send_first_value(std::size_t index, int owner);
  /// Writes that of one parameter, from StrategyArguments::values, into `out` (of its shape and
  /// dtype). Acts on this rank alone.
  void write_first_value(std::size_t index, at::Tensor out);
  /// Sends the buffers. Call it when parameters have the storages that they keep until release().
  void broadcast_buffers();
  /// What this rank has of each parameter. The optimizer forgets all that it does not update.
  void shard_optimizer(Placements placements);
  /// From now on gradients are reduced while backward() runs, when they are complete and in the
  /// same order on all ranks, and units are gathered and dropped: see UnitSchedule.
  void reduce_in_backward(std::vector<UnitSchedule::Item> items, UnitSchedule::Reduce reduce,
                          Units units = Units::kWhole);
  /// The same in finish_backward(), last to first.
  void reduce_after_backward(std::vector<UnitSchedule::Item> items, UnitSchedule::Reduce reduce);

  // What it may call.

  static constexpr std::size_t kRoot = 0;  ///< the outermost unit, the model itself
  std::size_t count() const { return list_.size(); }
  const at::Tensor& parameter(std::size_t index) const { return list_.parameters[index].tensor; }
  at::Tensor& gradient(std::size_t index) const { return parameter(index).mutable_grad(); }
  void drop_gradient(std::size_t index) const { gradient(index) = at::Tensor(); }
  /// Indices of all trainable parameters in reverse registration order.
  std::vector<std::size_t> backward_order() const;
  /// Whether finish_backward() reduces after this micro-batch.
  bool reduces_now() const { return requires_gradient_sync_ || reduces_each_; }
  /// The local gradient of a parameter, for a reduction: zeros if backward made none, because other
  /// ranks may have one. Notes whether there was one.
  at::Tensor& gradient_to_reduce(std::size_t index);
  /// Notes which parameters have a gradient, before they are reduced together.
  void note_used(const std::vector<std::size_t>& indices);
  /// While it lives, collectives that send parameters carry the name of unit `unit`: ranks that
  /// gather different units never take each other's values, but throw an error that names both
  /// (dist::Communicator::matches_calls()). After it they cannot go on.
  dist::CallScope naming(std::size_t unit) const;
  /// Which units are in use, and how often they ran.
  const UnitSchedule& schedule() const { return passes_.schedule(); }

  const dist::Mesh mesh_;
  dist::Communicator& communicator_;
  const dist::Reduction average_;

 private:
  void fill_first_value(std::size_t index);
  void gather_by_name(std::size_t unit, Gather why);
  void update();
  void make_optimizer(const optim::OptimizerFactory& make,
                      const std::vector<at::Tensor>& parameters);
  void verify_whole() const;
  std::string cut_message(const nn::Parameter& p) const;
  static Placements whole(const nn::ParameterList& list);
  void note_possible_write(std::size_t index) const;

  torch::nn::Module& module_;
  std::optional<nn::ModelUnits> units_;  // made with the list
  nn::ParameterList list_;
  const StageOfModel stage_of_model_;
  Placements placements_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  const bool reduces_each_;  // every micro-batch
  bool requires_gradient_sync_ = true;
  bool awaits_reduction_ = false;  // backward() began; finish_backward() must reduce its gradients
  std::string failure_;            // that has left weights partly changed
  ShownValues shown_;
  AveragedGradients averaged_;
  HeldModel held_;
  nn::ParameterSource* const values_;
  AutogradPasses passes_;
};

}  // namespace zero::train
