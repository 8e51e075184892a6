#include <c10/core/GradMode.h>
#include <c10/util/ScopeExit.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <utility>

#include <zero/base/error.hpp>
#include <zero/base/scoped.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/nn/gradient_destination.hpp>
#include <zero/nn/read_watch.hpp>
#include <zero/train/backward/autograd_passes.hpp>
#include <zero/train/unsharded_read.hpp>

namespace zero::train {

using memory::Category;
using memory::Charge;

AutogradPasses::AutogradPasses(nn::ModelUnits& model, const nn::ParameterList& list,
                               UnitSchedule::Actions actions, Gradients gradients)
    : model_(model),
      list_(list),
      gradients_(std::move(gradients)),
      schedule_(list, std::move(actions)) {
  for (std::size_t u = 0; u < list_.units.size(); ++u) index_.try_emplace(list_.units[u].unit, u);
  for (std::size_t i = 0; i < list_.size(); ++i) set_hook(i);
  model_.set_hooks(this);
}

void AutogradPasses::set_hook(std::size_t index) {
  nn::on_gradient_ready(parameter(index), [this, index] { gradient_ready(index); });
}

void AutogradPasses::remove_hooks() {
  if (!std::exchange(has_hooks_, false)) return;  // another strategy may have its own there
  model_.set_hooks(nullptr);
  for (std::size_t i = 0; i < list_.size(); ++i) {
    nn::on_gradient_ready(parameter(i), {});
    nn::set_gradient_provider(parameter(i), {});
  }
}

template <typename Pass>
auto AutogradPasses::run(const Pass& pass) {
  const ScopedValue running(running_, true);
  try {
    return naming_unsharded_reads(pass);
  } catch (...) {
    schedule_.stop_forwards();  // their post_forward() will not be called
    last_threw_ = true;
    throw;
  }
}

at::Tensor AutogradPasses::forward(const std::function<at::Tensor()>& pass,
                                   std::optional<std::int64_t> loss_terms) {
  const Charge charge(Category::kActivations);
  const bool trains = c10::GradMode::is_enabled();
  end_other_pass();
  if (std::exchange(last_threw_, false)) schedule_.drop_all();
  schedule_.begin_forward(trains);
  model_.call_hooks_of_found(schedule_.units() != Units::kWhole);
  at::Tensor loss = run([&] { return model_.forward(pass); });
  schedule_.end_forward();
  if (!trains) schedule_.drop_all();  // no backward will use what was gathered
  forwards_.add(loss, loss_terms);
  return loss;
}

// LibTorch's advice to retain the graph is of no use here: units of it are dropped as it runs.
static void run_graph(const at::Tensor& loss) {
  try {
    loss.backward();
  } catch (const c10::Error& error) {
    if (error.msg().find("backward through the graph a second time") == std::string::npos) throw;
    throw Error(
        "backward() of a loss whose graph an earlier backward() has used up: two losses of one "
        "forward() take one backward() of their sum, backward(main + aux)");
  }
}

void AutogradPasses::backward(const at::Tensor& loss, bool reduces) {
  check_hooks();
  end_other_pass();
  {
    const Charge charge(Category::kActivations);
    run([&] {
      const auto end = c10::make_scope_exit([this] { schedule_.stop_backward(); });
      const ScopedValue within(in_backward_, true);
      schedule_.begin_backward(reduces);
      // Calls pre_backward() and gradient_ready() below: the constructor has set the hooks.
      model_.backward([&] { run_graph(loss); });
    });
  }
  has_gradients_ = true;
  schedule_.end_backward();
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

void AutogradPasses::pre_forward(nn::Unit& unit) {
  const nn::Unwatched unwatched;
  const std::size_t u = index_.at(&unit);
  schedule_.enter_forward(u, in_backward_ ? Gather::kAgain : Gather::kForward);
}

void AutogradPasses::post_forward(nn::Unit& unit) {
  const nn::Unwatched unwatched;
  schedule_.leave_forward(index_.at(&unit));
}

void AutogradPasses::pre_backward(nn::Unit& unit) {
  const nn::Unwatched unwatched;
  const std::size_t u = index_.at(&unit);
  if (in_backward_) return schedule_.enter_backward(u);
  if (c10::GradMode::is_enabled()) expect_second_backward(u);
  schedule_.enter_other_pass(u);
}

// The pass records a graph (create_graph), whose own backward nothing announces.
void AutogradPasses::expect_second_backward(std::size_t unit) {
  if (!schedule_.drops()) return schedule_.note_backward(unit);
  const std::string& name = list_.units[unit].name;
  throw Error(fmt::format(
      "autograd::grad() with create_graph runs through {}, whose parameters are sharded: a second "
      "backward, as for a gradient penalty, needs stages 0 to 2; at stage 3 call grad() without "
      "create_graph",
      name.empty() ? "the root" : "unit '" + name + "'"));
}

void AutogradPasses::runs_again(nn::Unit& unit) { schedule_.expect_backward(index_.at(&unit)); }

void AutogradPasses::end_other_pass() {
  schedule_.end_other_pass();
  // Dropped gradients may have left a buffer behind.
  if (std::exchange(has_foreign_buffers_, false)) gradients_.drop();
}

void AutogradPasses::forget_gradients() {
  has_gradients_ = false;
  schedule_.give_up();
  // A backward() that threw has left other units whole on each rank, and reduced other gradients.
  if (last_threw_) schedule_.drop_all();  // and once more in the next forward()
}

void AutogradPasses::prepare_update() {
  if (!has_gradients_) {
    throw Error("optimizer_step() before backward(): there are no gradients to step with");
  }
  const auto& units = list_.units;
  if (const std::size_t held = schedule_.first_held(); held < units.size()) {
    throw Error(fmt::format(
        "optimizer_step() while train::UnshardedParameters of unit '{}' lives: what it shows would "
        "be old; end it before the update",
        units[held].name));
  }
  schedule_.forget_forwards();
}

void AutogradPasses::weights_changed() {
  forwards_.weights_changed();
  schedule_.forget_reads();
}

void AutogradPasses::gradient_ready(std::size_t index) {
  const nn::Unwatched unwatched;
  if (!parameter(index).requires_grad()) return;  // frozen since its forward: it has none
  if (!in_backward_) return drop_foreign_gradient(index);
  at::Tensor& gradient = parameter(index).mutable_grad();
  if (gradient.defined() && !gradient.has_storage()) {
    gradient.reset();
    throw Error(fmt::format(
        "parameter '{}' has a sparse gradient, which is not averaged: look it up without sparse, "
        "or leave it to the program (EngineConfig::ignored)",
        list_.parameters[index].name));
  }
  // Inside autograd a new gradient is charged as an activation: correct that.
  memory::recharge(gradient, Category::kGradients);
  if (gradient.defined()) {
    begin_unit_of(index);
    if (observer_) observer_(index, gradient);
  }
  // A stage with flat buffers moves the gradient into its buffer; others do nothing. Then the
  // schedule reduces what may go.
  gradients_.ready(index);
  schedule_.gradient_ready(index);
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
  if (schedule_.units() == Units::kWhole || schedule_.has_begun(u) || schedule_.is_held(u)) return;
  if (model_.has_found_units()) return pre_backward(*list_.units[u].unit);
  throw Error(fmt::format(
      "parameter '{}' has a gradient, but the forward of its unit '{}' did not run in "
      "nn::Unit::run(), so that nothing has waited for its values: wrap the unit's forward in "
      "run(), or read the parameter under train::UnshardedParameters",
      p.name, list_.units[u].name));
}

}  // namespace zero::train
