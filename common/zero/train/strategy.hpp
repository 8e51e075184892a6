#pragma once

#include <torch/types.h>

#include <any>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <zero/data/batch.hpp>
#include <zero/distributed/communicator.hpp>
#include <zero/nn/model.hpp>
#include <zero/nn/parameters.hpp>
#include <zero/optim/norm.hpp>
#include <zero/optim/optimizer.hpp>
#include <zero/train/averaged_gradients.hpp>
#include <zero/train/forward_records.hpp>
#include <zero/train/ownership.hpp>
#include <zero/train/parameter_shard.hpp>
#include <zero/train/unit_use.hpp>

namespace zero::train {

/// When the gradients of several micro-batches are averaged over ranks.
enum class Accumulation {
  kLocal,       ///< add up locally, reduce once, after the last micro-batch: least traffic
  kReduceEach,  ///< reduce every micro-batch and add up the averages: least memory when sharded
};

/// Everything a strategy is made from.
struct StrategyArguments {
  nn::Model& model;
  dist::Communicator& communicator;
  optim::OptimizerFactory optimizer;
  /// First values of parameters that have no storage yet; asked on rank 0 only.
  nn::ParameterSource* values = nullptr;
  std::string variant = {};  ///< one of the chapter's; empty: its default
  Ownership ownership = Ownership::kBySize;
  Accumulation accumulation = Accumulation::kLocal;
  /// The type in which gradients of 2-byte dtypes are reduced.
  dist::ReduceType reduce_type = dist::ReduceType::kOwn;
  /// Options of the chapter's own type (OverlapOptions for engine0 to engine3). They replace those
  /// that `variant` stands for; empty: those of the variant.
  std::any options = {};
  std::string mode = {};  ///< the strategy's name, for messages; the registry fills it in
};

/// Bytes of model states that one rank holds at rest: after sync_parameters, before zero_grad.
struct ModelStateBytes {
  std::int64_t parameters = 0;
  std::int64_t gradients = 0;
  std::int64_t optimizer = 0;
  std::int64_t total() const { return parameters + gradients + optimizer; }
};

/// One way to train a model on several ranks, and the one interface between a chapter and
/// everything else. A step is
///
///     loss = forward(batch)      for each micro-batch
///     backward(loss)             with set_requires_gradient_sync() before it
///     finish_backward()
///     optimizer_step()
///     sync_parameters()
///     zero_grad()                may come later: gradients stay readable until then
///
/// All ranks must call all functions except plain getters, in the same order. Each call blocks
/// until this rank's part is done, and throws zero::Error when a peer fails.
///
/// The base class registers the hooks of the units and parameters, and does what all chapters
/// share: clipping, accumulation, parameters that no rank used.
class Strategy : public nn::UnitHooks {
 public:
  ~Strategy() override;
  Strategy(const Strategy&) = delete;
  Strategy& operator=(const Strategy&) = delete;

  /// The loss of the local micro-batch, from Model::loss().
  virtual at::Tensor forward(const data::Batch& batch);
  /// Runs autograd; hooks fire inside. Call it once before each finish_backward() that reduces
  /// (zero::Error otherwise). The loss may come from several forward()s, and others may have run
  /// since. Throws zero::Error, before anything has happened, if the weights have changed since one
  /// of the forward()s that the loss comes from: its graph belongs to the old weights.
  ///
  /// Only this function makes gradients of the model's parameters. Another backward() that passes
  /// through the model, such as a generator's through its discriminator, gathers what it needs, and
  /// the parameter gradients that it makes are dropped. If this strategy holds gradients that
  /// zero_grad() has not dropped, they throw zero::Error instead.
  virtual void backward(const at::Tensor& loss);
  /// Waits for what is in flight. After the last micro-batch the gradients that this rank is
  /// responsible for (see owns()) are the average over ranks.
  virtual void finish_backward() = 0;
  /// Updates what this rank owns.
  virtual void optimizer_step();
  /// Makes parameters whole again where the stage keeps them whole.
  virtual void sync_parameters() {}
  /// Drops all gradients.
  virtual void zero_grad();

  /// Call before backward(): whether the gradients of this micro-batch are reduced after it
  /// (default: yes). False for all micro-batches of a step except the last.
  void set_requires_gradient_sync(bool sync) { requires_gradient_sync_ = sync; }

  /// Call when something other than optimizer_step() has changed the weights, such as loading a
  /// checkpoint.
  void note_weights_changed() { forwards_.weights_changed(); }

  /// Number of loss terms (data::Batch) of the forward() that `loss` comes from; the mean if it
  /// comes from several, 0 if from none.
  double loss_terms(const at::Tensor& loss) const;

  /// Scales the gradients so that their global norm, divided by gradient_scale(), is at most
  /// `max_norm`; returns the norm before scaling. See AveragedGradients::clip().
  virtual float clip_grad_norm(double max_norm, optim::Norm norm = optim::Norm::kL2);

  /// From now on the losses given to backward() are multiplied by `scale` (see loss_scale.hpp), so
  /// gradients are too large by that factor, and the optimizer divides by it. Acts on this rank
  /// alone; all ranks must set the same. Throws zero::Error if the optimizer cannot
  /// (optim::Optimizer::set_gradient_scale()).
  void set_gradient_scale(double scale);
  double gradient_scale() const { return gradient_scale_; }

  /// Multiplies the averaged gradients that this rank is responsible for.
  void scale_gradients(double factor);

  /// See AveragedGradients::first_nonfinite().
  std::optional<NonfiniteGradient> nonfinite_gradient() { return averaged_.first_nonfinite(); }

  /// Makes the parameters of unit `unit` whole for reading, until reshard() has been called as
  /// often. Allowed during forward() and backward() too. Without it, reading a parameter outside of
  /// its unit is an error that names it, if the stage does not keep it whole: zero::Error inside
  /// forward() or backward(), else c10::Error. Values read here may have a gradient, such as that
  /// of a penalty on weights, if they do on all ranks: the next backward() then keeps the unit
  /// whole throughout.
  void unshard(std::size_t unit);
  void reshard(std::size_t unit);

  /// Gives the model back: parameters are whole on every rank, with the trained values and storage
  /// of their own, gradients are dropped, and another strategy or an ordinary program may use the
  /// model. This strategy cannot train afterwards. If a strategy is destroyed without release(),
  /// its model may hold only this rank's shards, and no other strategy accepts it. Called by all
  /// ranks, between steps; blocks. Needs the bytes of the whole model on every rank.
  void release();

  /// Whether this rank updates parameter `index`, and holds its averaged gradient.
  virtual bool owns(std::size_t index) const { return true; }

  /// The part of parameter `index` that this rank updates: all of it if it owns it, unless the
  /// chapter splits tensors.
  virtual ParameterShard piece(std::size_t index) const {
    return owns(index) ? ParameterShard{parameter(index), 0} : ParameterShard{};
  }

  /// The part of parameter `index` that this rank keeps between steps, whether it updates it or
  /// not: a checkpoint restores it. Frozen parameters have one too. It is all of the parameter if
  /// the stage keeps parameters whole.
  virtual ParameterShard local_shard(std::size_t index) const;

  /// Whether ranks own different parameters. The same answer on all ranks.
  virtual bool sharded() const { return false; }

  /// Model states of this rank at rest, by the stage's formula.
  virtual ModelStateBytes predicted_bytes() const = 0;
  /// Bytes of gradients and parameters that this rank sends in one step with one micro-batch, by
  /// the formula of the variant. Control messages are not counted.
  virtual std::int64_t predicted_traffic() const = 0;

  /// Shows every local gradient to `observer` as backward finishes it, before any reduction: for
  /// checks. An empty function removes it.
  using GradientObserver = std::function<void(std::size_t index, const at::Tensor& gradient)>;
  void observe_gradients(GradientObserver observer) { observer_ = std::move(observer); }

  const nn::ParameterList& list() const { return list_; }
  nn::Model& model() { return model_; }
  dist::Communicator& communicator() { return communicator_; }
  optim::Optimizer& optimizer() { return *optimizer_; }

 protected:
  /// Called by all ranks. Throws zero::Error on every rank, before anything else is sent, if ranks
  /// differ in the variant, its options, or the names, shapes, dtypes, units or trainability of
  /// parameters and buffers; the error names the first difference. `granularity`: what counts as a
  /// unit, in list().units and for the hooks.
  explicit Strategy(const StrategyArguments& arguments,
                    nn::Granularity granularity = nn::Granularity::kUnit);

  /// Called by backward() before autograd runs and after it.
  virtual void begin_backward() {}
  virtual void end_backward() {}
  /// Whether backward() is running.
  bool in_backward() const { return in_backward_; }

  /// Makes the parameters of unit `unit` whole on all ranks. Does nothing if they are.
  virtual void gather(std::size_t unit) {}
  /// Drops what this rank does not keep of unit `unit`, unless is_in_use().
  virtual void drop(std::size_t unit) {}
  /// Drops what this rank does not keep of any unit.
  void reshard_all();
  /// Blocks until parameters that are on their way to this rank have come.
  virtual void finish_parameters() {}
  /// Whether unit `unit` is between unshard() and reshard(). Inside backward() its gradients may
  /// come at any time, so they are reduced at the end.
  bool is_held(std::size_t unit) const { return use_.is_held(unit); }
  /// Whether it is held, or its forward is running.
  bool is_in_use(std::size_t unit) const { return use_.is_in_use(unit); }

  /// Called inside backward(), when the gradient of trainable parameter `index` is complete.
  virtual void gradient_ready(std::size_t index) {}

  /// True after release(): a destructor has nothing left to undo.
  bool released() const { return released_; }

  std::size_t count() const { return list_.size(); }
  const at::Tensor& parameter(std::size_t index) const { return list_.parameters[index].tensor; }
  bool trainable(std::size_t index) const { return parameter(index).requires_grad(); }
  at::Tensor& gradient(std::size_t index) const { return parameter(index).mutable_grad(); }
  void drop_gradient(std::size_t index) const { gradient(index) = at::Tensor(); }

  /// The local gradient of a parameter, for a reduction: zeros if backward made none, because other
  /// ranks may have one. Notes whether there was one.
  at::Tensor& gradient_to_reduce(std::size_t index);

  /// Notes whether this rank's backward used parameter `index`, for complete_reduction().
  void note_used(std::size_t index, bool used) { used_[index] = used; }

  /// The same for parameters that are reduced together; those with a gradient were used.
  void note_used(const std::vector<std::size_t>& indices);
  bool any_trainable(const std::vector<std::size_t>& indices) const;

  /// Whether finish_backward() reduces after this micro-batch.
  bool reduces_now() const {
    return requires_gradient_sync_ || accumulation_ == Accumulation::kReduceEach;
  }

  /// Ends every finish_backward() that reduced: drops the gradients of parameters that no rank used
  /// (a small all-reduce finds them) and adds up micro-batches that were reduced one by one.
  void complete_reduction();

  /// Sends rank 0's first values of every parameter and buffer to all ranks. For stages that hold
  /// the whole model.
  void broadcast_from_rank_0();
  /// The buffers alone, by a constructor that has put the parameters where they are to stay.
  void broadcast_buffers_from_rank_0();
  /// Allocates one parameter; on rank 0, also asks the source for its first value.
  void fill(std::size_t index);
  /// Writes the first value of one parameter, from the source, into `out` (of its shape and dtype).
  void first_value(std::size_t index, at::Tensor out);

  /// Makes the optimizer forget every parameter that this rank does not own.
  void shard_optimizer();

  std::int64_t trainable_bytes() const;
  /// Bytes of optimizer state on this rank once everything has been updated, as the optimizer
  /// reports them: for its pieces of trainable parameters, and of those that were frozen after an
  /// update.
  std::int64_t optimizer_bytes() const;
  /// Bytes of the gradients of all trainable parameters, in the types in which they are reduced.
  std::int64_t reduced_bytes() const;
  /// The same for the parameters that this rank owns, and for one parameter.
  std::int64_t reduced_owned_bytes() const;
  std::int64_t reduced_bytes_of(std::size_t index) const;

  nn::Model& model_;
  dist::Communicator& communicator_;
  const dist::Reduction average_;  // of gradients, in the type that was asked for
  nn::ParameterList list_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  bool requires_gradient_sync_ = true;

 private:
  struct Origin {
    const void* storage;
    bool has_bytes;
  };
  static Origin origin(const at::Tensor& tensor);
  void check_not_released() const;
  void check_places() const;
  void remove_hooks();
  bool model_is_whole() const;

  // Does what all strategies share, then calls the strategy's own hooks.
  class Hooks final : public nn::UnitHooks {
   public:
    explicit Hooks(Strategy& strategy) : strategy_(strategy) {}
    void pre_forward(nn::Unit& unit) override;
    void post_forward(nn::Unit& unit) override;
    void pre_backward(nn::Unit& unit) override;
    void post_backward(nn::Unit& unit) override;
    void records_backward(nn::Unit& unit) override { strategy_.records_backward(unit); }

   private:
    Strategy& strategy_;
  };

  void on_ready(std::size_t index);
  void drop_foreign_gradient(std::size_t index);
  void check_origin(std::size_t index) const;
  template <typename Pass>
  auto run_pass(const Pass& pass);
  void run_backward(const at::Tensor& loss);
  void gather_for_other_pass(std::size_t unit);
  void end_other_pass();
  void complete_flags();
  void add_up_micro_batches();

  ForwardRecords forwards_;
  GradientObserver observer_;
  nn::ParameterSource* values_;
  Accumulation accumulation_;
  double gradient_scale_ = 1.0;
  std::string mode_;
  std::vector<Origin> origins_;      // by parameter, as the strategy got them
  std::vector<const void*> places_;  // their storages, as the constructor has left them
  bool released_ = false;
  bool has_gradients_ = false;
  bool awaits_reduction_ = false;  // a backward whose gradients are to be reduced has begun
  std::vector<bool> used_;         // this rank, this reduction
  UnitUse use_;
  AveragedGradients averaged_;
  bool in_backward_ = false;
  bool pass_threw_ = false;           // the last one: units may be whole still
  bool has_foreign_buffers_ = false;  // of gradients that another backward() made
  Hooks hooks_{*this};
  std::vector<at::Tensor> accumulated_;  // averages of earlier micro-batches
};

/// While it lives, the parameters of one unit are whole for reading.
class UnshardedParameters {
 public:
  UnshardedParameters(Strategy& strategy, std::size_t unit) : strategy_(strategy), unit_(unit) {
    strategy_.unshard(unit_);
  }
  ~UnshardedParameters() { strategy_.reshard(unit_); }
  UnshardedParameters(const UnshardedParameters&) = delete;
  UnshardedParameters& operator=(const UnshardedParameters&) = delete;

 private:
  Strategy& strategy_;
  std::size_t unit_;
};

}  // namespace zero::train
