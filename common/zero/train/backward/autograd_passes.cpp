#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <utility>

#include <zero/base/error.hpp>
#include <zero/base/scoped_value.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/nn/gradient_destination.hpp>
#include <zero/nn/read_watch.hpp>
#include <zero/train/backward/autograd_passes.hpp>
#include <zero/train/unsharded_read.hpp>

namespace zero::train {

using memory::Category;
using memory::Charge;

AutogradPasses::AutogradPasses(nn::Model& model, const nn::ParameterList& list,
                               dist::Communicator& world, const Shards& shards, PassHooks& hooks)
    : model_(model), list_(list), world_(world), shards_(shards), hooks_(hooks), use_(list) {
  for (std::size_t u = 0; u < list_.units.size(); ++u) index_.try_emplace(list_.units[u].unit, u);
  for (std::size_t i = 0; i < list_.size(); ++i) set_hook(i);
  nn::set_hooks(model_, this);
}

void AutogradPasses::set_hook(std::size_t index) {
  nn::on_gradient_ready(parameter(index), [this, index] { gradient_ready(index); });
}

void AutogradPasses::remove_hooks() {
  if (!std::exchange(has_hooks_, false)) return;  // another strategy may have its own there
  nn::set_hooks(model_, nullptr);
  for (std::size_t i = 0; i < list_.size(); ++i) {
    nn::on_gradient_ready(parameter(i), {});
    nn::set_gradient_provider(parameter(i), {});
  }
}

void AutogradPasses::set_schedule(std::vector<BackwardSchedule::Item> items,
                                  BackwardSchedule::Actions actions) {
  actions.is_held = [this](std::size_t u) { return use_.is_held(u); };
  schedule_.emplace(list_, std::move(items), std::move(actions));
}

template <typename Pass>
auto AutogradPasses::run(const Pass& pass) {
  const ScopedValue running(running_, true);
  try {
    return naming_unsharded_reads(pass);
  } catch (...) {
    use_.end_forwards();  // their post_forward() will not be called
    last_threw_ = true;
    throw;
  }
}

at::Tensor AutogradPasses::forward(const std::function<at::Tensor()>& pass,
                                   std::int64_t loss_terms) {
  const Charge charge(Category::kActivations);
  end_other_pass();
  if (std::exchange(last_threw_, false)) reshard_all();
  if (schedule_) schedule_->begin_forward(/*trains=*/c10::GradMode::is_enabled());
  model_.watch_units(hooks_.follows_units());
  at::Tensor loss = run([&] { return model_.run_forward(pass); });
  if (schedule_) schedule_->end_forward();
  forwards_.add(loss, loss_terms);
  return loss;
}

void AutogradPasses::backward(const at::Tensor& loss, bool reduces) {
  check_hooks();
  end_other_pass();
  if (schedule_) schedule_->begin_backward(reduces);
  hooks_.begin_backward();
  {
    const Charge charge(Category::kActivations);
    run([&] {
      const ScopedValue within(in_backward_, true);
      struct Reading {
        UnitUse& use;
        ~Reading() { use.end_backward(); }
      } reading{use_};
      for (const std::size_t u : use_.begin_backward()) hooks_.gather(u);
      // Calls pre_backward() and gradient_ready() below: the constructor has set the hooks.
      model_.run_backward([&] { loss.backward(); });
    });
  }
  hooks_.end_backward();
  has_gradients_ = true;
  if (!schedule_) return;
  schedule_->end_units();
  reshard_all();  // before reductions allocate
  // Parameters that this rank's batch did not use send zeros: other ranks may have gradients of
  // them, and wait for this one.
  schedule_->reduce_rest();
}

// Of the program, on parameters.
void AutogradPasses::check_hooks() {
  for (std::size_t i = 0; i < list_.size(); ++i) {
    const nn::Parameter& p = list_.parameters[i];
    if (!nn::calls_on_gradient_ready(p.tensor)) {  // it has set one in the place of ours
      set_hook(i);
      if (!has_gradients_) drop_foreign_gradient(i);
    }
    const auto accumulator = torch::autograd::impl::try_get_grad_accumulator(p.tensor);
    if (accumulator != nullptr && !accumulator->post_hooks().empty()) {
      throw Error(fmt::format(
          "the gradient accumulator of parameter '{}' has a post hook (add_post_hook()), which "
          "would be called when the gradient has been taken for its reduction: use "
          "set_post_acc_grad_hooks() or register_hook()",
          p.name));
    }
    if (p.placement.sums_gradient &&
        (nn::has_gradient_hooks(p.tensor) || nn::has_post_hook(p.tensor))) {
      throw Error(fmt::format(
          "parameter '{}' has a hook that sees its gradient, but under sequence parallelism each "
          "tensor rank has the gradient of its own tokens only",
          p.name));
    }
  }
}

void AutogradPasses::reshard_all() {
  for (std::size_t u = 0; u < list_.units.size(); ++u) hooks_.drop(u);
}

// The name of a unit in the fingerprints of its gathers; empty if the stage compares the order of
// its units, and this one has a place in it.
std::string_view AutogradPasses::gathered(std::size_t unit, bool is_in_order) const {
  if (hooks_.compares_order() && running_ && is_in_order) return "";
  return list_.units[unit].name;
}

void AutogradPasses::pre_forward(nn::Unit& unit) {
  const nn::Unwatched unwatched;
  const std::size_t u = index_.at(&unit);
  if (schedule_) schedule_->enter_forward(u);
  const dist::CallScope scope(world_, "", gathered(u, /*is_in_order=*/!in_backward_));
  hooks_.pre_forward(u);
  use_.begin_forward(u);
}

void AutogradPasses::post_forward(nn::Unit& unit) {
  const nn::Unwatched unwatched;
  const std::size_t u = index_.at(&unit);
  if (use_.end_forward(u)) hooks_.post_forward(u);
}

void AutogradPasses::pre_backward(nn::Unit& unit) {
  const nn::Unwatched unwatched;
  const std::size_t u = index_.at(&unit);
  const dist::CallScope scope(world_, "", gathered(u, /*is_in_order=*/in_backward_));
  if (!in_backward_) return gather_for_other_pass(u);
  use_.enter_backward(u);
  if (schedule_) schedule_->enter_backward(u);
  hooks_.pre_backward(u);
}

// The pass records a graph (create_graph), whose own backward nothing announces.
void AutogradPasses::expect_second_backward(std::size_t unit) {
  if (!schedule_ || !schedule_->reshards()) return use_.enter_backward(unit);
  const std::string& name = list_.units[unit].name;
  throw Error(fmt::format(
      "autograd::grad() with create_graph runs through {}, whose parameters are sharded: a second "
      "backward, as for a gradient penalty, needs stages 0 to 2; at stage 3 call grad() without "
      "create_graph",
      name.empty() ? "the root" : "unit '" + name + "'"));
}

void AutogradPasses::runs_again(nn::Unit& unit) {
  if (schedule_) schedule_->expect_backward(index_.at(&unit));
}

void AutogradPasses::gather_for_other_pass(std::size_t unit) {
  if (c10::GradMode::is_enabled()) expect_second_backward(unit);
  if (schedule_) schedule_->end_outside_use(unit);
  for (const std::size_t over : use_.enter_other_pass(unit)) hooks_.drop(over);
  hooks_.gather(unit);
}

void AutogradPasses::end_other_pass() {
  for (const std::size_t u : use_.end_other_pass()) hooks_.drop(u);
  // Dropped gradients may have left a buffer behind.
  if (std::exchange(has_foreign_buffers_, false)) hooks_.zero_grad();
}

void AutogradPasses::forget_gradients() {
  has_gradients_ = false;
  if (schedule_) schedule_->give_up();
  // A backward() that threw has left other units whole on each rank, and reduced other gradients.
  if (last_threw_) reshard_all();  // and once more in the next forward()
}

void AutogradPasses::prepare_update() {
  if (!has_gradients_) {
    throw Error("optimizer_step() before backward(): there are no gradients to step with");
  }
  const auto& units = list_.units;
  if (const std::size_t held = use_.first_held(); held < units.size()) {
    throw Error(fmt::format(
        "optimizer_step() while train::UnshardedParameters of unit '{}' lives: what it shows would "
        "be old; end it before the update",
        units[held].name));
  }
  drop_forwards();
}

void AutogradPasses::drop_forwards() {
  if (!schedule_) return;
  reshard_all();
  schedule_->forget_forwards();
}

void AutogradPasses::weights_changed() {
  forwards_.weights_changed();
  use_.forget_reads();
}

void AutogradPasses::gradient_ready(std::size_t index) {
  const nn::Unwatched unwatched;
  if (!trainable(index)) return;  // frozen since its forward: it has none
  if (!in_backward_) return drop_foreign_gradient(index);
  const at::Tensor& gradient = parameter(index).mutable_grad();
  // Inside autograd a new gradient is charged as an activation: correct that.
  memory::recharge(gradient, Category::kGradients);
  if (gradient.defined()) {
    begin_unit_of(index);
    if (observer_) observer_(index, gradient);
  }
  // A stage with flat buffers moves the gradient into its buffer; others do nothing. Then the
  // schedule reduces what may go.
  hooks_.gradient_ready(index);
  if (schedule_) schedule_->gradient_ready(index);
}

void AutogradPasses::drop_foreign_gradient(std::size_t index) {
  if (has_gradients_) {
    throw Error(fmt::format(
        "parameter '{}' has a gradient from a backward() that its engine did not run, while the "
        "engine holds gradients of its own step: finish that step first, or freeze the parameter "
        "(requires_grad_(false)) for this pass",
        list_.parameters[index].name));
  }
  parameter(index).mutable_grad() = at::Tensor();
  has_foreign_buffers_ = true;
}

// Nothing has announced the backward of the unit of a gradient that is there.
void AutogradPasses::begin_unit_of(std::size_t index) {
  const nn::Parameter& p = list_.parameters[index];
  const std::size_t u = p.unit;
  if (!shards_.sharded() || use_.has_entered_backward(u) || use_.is_held(u)) return;
  if (model_.is_plain()) return pre_backward(*list_.units[u].unit);
  throw Error(fmt::format(
      "parameter '{}' has a gradient, but the forward of its unit '{}' did not run in "
      "nn::Unit::run(), so that nothing has waited for its values: wrap the unit's forward in "
      "run(), or read the parameter under train::UnshardedParameters",
      p.name, list_.units[u].name));
}

}  // namespace zero::train
