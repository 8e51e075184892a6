#pragma once

#include <torch/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <zero/distributed/communicator.hpp>
#include <zero/nn/model.hpp>
#include <zero/nn/parameters.hpp>
#include <zero/train/backward/backward_schedule.hpp>
#include <zero/train/backward/forward_records.hpp>
#include <zero/train/backward/pass_hooks.hpp>
#include <zero/train/backward/unit_use.hpp>
#include <zero/train/parameter_shard.hpp>

namespace zero::train {

/// The passes of autograd through a strategy's model. Hooks on its units and parameters call the
/// strategy's PassHooks.
///
/// A pass other than Strategy::backward(), such as autograd::grad() or a generator's backward()
/// through its discriminator, gathers what it needs, and the parameter gradients that it makes are
/// dropped. If the strategy holds gradients that zero_grad() has not dropped, such a pass throws
/// zero::Error instead. So does one with create_graph, where it begins, if the schedule reshards:
/// the graph that it records would read parameters that are gone by then.
class AutogradPasses : private nn::UnitHooks {
 public:
  using GradientObserver = std::function<void(std::size_t index, const at::Tensor& gradient)>;

  /// Registers the hooks. All must outlive this object. `list`: the parameters of `model`. `world`:
  /// all ranks that gather.
  AutogradPasses(nn::Model& model, const nn::ParameterList& list, dist::Communicator& world,
                 const Shards& shards, PassHooks& hooks);
  ~AutogradPasses() override { remove_hooks(); }
  void remove_hooks();
  /// From now on backward() calls the actions of a BackwardSchedule.
  void set_schedule(std::vector<BackwardSchedule::Item> items, BackwardSchedule::Actions actions);
  const std::optional<BackwardSchedule>& schedule() const { return schedule_; }
  AutogradPasses(const AutogradPasses&) = delete;
  AutogradPasses& operator=(const AutogradPasses&) = delete;

  /// See Strategy. `reduces`: the gradients are reduced after this micro-batch.
  at::Tensor forward(const std::function<at::Tensor()>& pass, std::int64_t loss_terms);
  void backward(const at::Tensor& loss, bool reduces);
  /// Call when gradients are dropped: the next backward() begins anew.
  void forget_gradients();
  /// Call before an update. Drops what a forward() without a backward() has left whole: the update
  /// makes those values old. Throws zero::Error unless an update may follow now.
  void prepare_update();
  /// Call when the weights have changed, on all ranks.
  void weights_changed();
  /// Drops what a forward() without a backward() has left whole, and expects no backward of it.
  void drop_forwards();

  bool in_backward() const { return in_backward_; }
  /// Whether forward() or backward() is running.
  bool is_running() const { return running_; }
  UnitUse& use() { return use_; }
  const UnitUse& use() const { return use_; }
  ForwardRecords& forwards() { return forwards_; }
  void observe_gradients(GradientObserver observer) { observer_ = std::move(observer); }

 private:
  void pre_forward(nn::Unit& unit) override;
  void post_forward(nn::Unit& unit) override;
  void pre_backward(nn::Unit& unit) override;
  void runs_again(nn::Unit& unit) override;

  void set_hook(std::size_t index);
  void check_hooks();
  template <typename Pass>
  auto run(const Pass& pass);
  std::string_view gathered(std::size_t unit, bool is_in_order) const;
  void gather_for_other_pass(std::size_t unit);
  void expect_second_backward(std::size_t unit);
  void end_other_pass();
  void gradient_ready(std::size_t index);
  void drop_foreign_gradient(std::size_t index);
  void begin_unit_of(std::size_t index);

  bool trainable(std::size_t index) const { return parameter(index).requires_grad(); }
  const at::Tensor& parameter(std::size_t index) const { return list_.parameters[index].tensor; }
  void reshard_all();

  nn::Model& model_;
  const nn::ParameterList& list_;
  dist::Communicator& world_;
  std::unordered_map<const nn::Unit*, std::size_t> index_;  // in list_.units
  const Shards& shards_;
  PassHooks& hooks_;
  ForwardRecords forwards_;
  UnitUse use_;
  std::optional<BackwardSchedule> schedule_;
  GradientObserver observer_;
  bool has_hooks_ = true;
  bool running_ = false;
  bool in_backward_ = false;
  bool has_gradients_ = false;        // of Strategy::backward()
  bool last_threw_ = false;           // units may be whole still
  bool has_foreign_buffers_ = false;  // of gradients that another backward() made
};

}  // namespace zero::train
