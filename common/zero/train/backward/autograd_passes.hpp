#pragma once

#include <torch/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <unordered_map>
#include <utility>

#include <zero/nn/model_units.hpp>
#include <zero/nn/parameters.hpp>
#include <zero/train/backward/forward_records.hpp>
#include <zero/train/backward/unit_schedule.hpp>

namespace zero::train {

/// The passes of autograd through a strategy's model: hooks on its units and parameters tell the
/// schedule what happens.
///
/// A pass other than Strategy::backward(), such as autograd::grad() or a generator's backward()
/// through its discriminator, gathers what it needs, and the parameter gradients that it makes are
/// dropped. If the strategy holds gradients that zero_grad() has not dropped, such a pass throws
/// zero::Error instead. So does one with create_graph, where it begins, if the schedule drops
/// units: the graph that it records would read parameters that are gone by then.
class AutogradPasses : private nn::UnitHooks {
 public:
  using GradientObserver = std::function<void(std::size_t index, const at::Tensor& gradient)>;
  /// What a strategy does with gradients.
  struct Gradients {
    /// Inside backward(): that of trainable parameter `index` is complete. The order may differ
    /// between ranks, and the schedule reduces afterwards.
    std::function<void(std::size_t index)> ready;
    /// Drops all.
    std::function<void()> drop;
  };

  /// Registers the hooks. `model` and `list`, its parameters, must outlive this object.
  AutogradPasses(nn::ModelUnits& model, const nn::ParameterList& list,
                 UnitSchedule::Actions actions, Gradients gradients);
  ~AutogradPasses() override { remove_hooks(); }
  void remove_hooks();
  AutogradPasses(const AutogradPasses&) = delete;
  AutogradPasses& operator=(const AutogradPasses&) = delete;

  UnitSchedule& schedule() { return schedule_; }
  const UnitSchedule& schedule() const { return schedule_; }

  /// See Strategy. `reduces`: the gradients are reduced after this micro-batch.
  at::Tensor forward(const std::function<at::Tensor()>& pass,
                     std::optional<std::int64_t> loss_terms);
  void backward(const at::Tensor& loss, bool reduces);
  /// Call when gradients are dropped: the next backward() begins anew.
  void forget_gradients();
  /// Call before an update. Drops what a forward() without a backward() has left whole: the update
  /// makes those values old. Throws zero::Error unless an update may follow now.
  void prepare_update();
  /// Call when the weights have changed, on all ranks.
  void weights_changed();

  bool in_backward() const { return in_backward_; }
  /// Whether forward() or backward() is running.
  bool is_running() const { return running_; }
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
  void expect_second_backward(std::size_t unit);
  void end_other_pass();
  void gradient_ready(std::size_t index);
  void drop_foreign_gradient(std::size_t index);
  void begin_unit_of(std::size_t index);

  const at::Tensor& parameter(std::size_t index) const { return list_.parameters[index].tensor; }

  nn::ModelUnits& model_;
  const nn::ParameterList& list_;
  std::unordered_map<const nn::Unit*, std::size_t> index_;  // in list_.units
  Gradients gradients_;
  UnitSchedule schedule_;
  ForwardRecords forwards_;
  GradientObserver observer_;
  bool has_hooks_ = true;
  bool running_ = false;
  bool in_backward_ = false;
  bool has_gradients_ = false;        // of Strategy::backward()
  bool last_threw_ = false;           // units may be whole still
  bool has_foreign_buffers_ = false;  // of gradients that another backward() made
};

}  // namespace zero::train
