#include <ATen/ops/zeros_like.h>
#include <c10/util/ScopeExit.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/variable.h>

#include <unordered_map>
#include <utility>

#include <zero/base/error.hpp>
#include <zero/distributed/agreement.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/memory/storage.hpp>
#include <zero/nn/read_watch.hpp>
#include <zero/train/broadcast_buffers.hpp>
#include <zero/train/strategy.hpp>

namespace zero::train {

using dist::Purpose;
using memory::Category;
using memory::Charge;

namespace {

// Text that must be equal on all ranks, one property per line.
std::string description(const nn::ParameterList& list, const StrategyArguments& arguments) {
  std::string text = fmt::format(
      "variant '{}', {}\ngradients of 2 bytes reduced in {}\n", arguments.variant,
      arguments.accumulation == Accumulation::kLocal ? "accumulation before the reduction"
                                                     : "a reduction of every micro-batch",
      dist::name(arguments.reduce_type));
  for (const nn::Parameter& p : list.parameters) {
    text += fmt::format("parameter '{}' [{}] {}, {}, of unit '{}'\n", p.name,
                        fmt::join(p.tensor.sizes(), ", "), c10::toString(p.tensor.scalar_type()),
                        p.tensor.requires_grad() ? "trainable" : "frozen", list.units[p.unit].name);
    if (p.placement.is_cut()) {
      text +=
          fmt::format("cut along dimension {}, {} parts\n", p.placement.dim, p.placement.parts());
    }
  }
  for (const auto& buffer : arguments.module.named_buffers()) {
    text +=
        fmt::format("buffer '{}' [{}] {}\n", buffer.key(), fmt::join(buffer.value().sizes(), ", "),
                    c10::toString(buffer.value().scalar_type()));
  }
  return text;
}

}  // namespace

Strategy::Strategy(const StrategyArguments& arguments)
    : mesh_(arguments.mesh),
      communicator_(mesh_.data()),
      average_(dist::ReduceOp::kAverage, arguments.reduce_type),
      module_(arguments.module),
      list_(HeldModel::free_parameters(arguments, units_)),
      stage_of_model_(list_, units_->whole_model()),
      placements_(whole(list_)),
      reduces_each_(arguments.accumulation == Accumulation::kReduceEach),
      shown_(list_),
      averaged_(list_, stage_of_model_, mesh_, placements_, optimizer_, arguments.reduce_type,
                reduces_each_),
      held_(arguments, list_, [this] { finish_parameters(); }),
      values_(arguments.values),
      passes_(*units_, list_,
              {.gather = [this](std::size_t u, Gather why) { gather_by_name(u, why); },
               .drop = [this](std::size_t u) { drop(u); }},
              {.ready = [this](std::size_t i) { gradient_ready(i); },
               .drop = [this] { zero_grad(); }}) {
  // First: ranks that differ would send each other the wrong bytes, or wait forever.
  mesh_.verify_same_at({"pipeline"}, kModelOrStrategy,
                       [&] { return description(list_, arguments); });
  std::vector<at::Tensor> all;
  for (const nn::Parameter& p : list_.parameters) {
    all.push_back(p.tensor);
    // A plain module's constructor does not charge its tensors to a category.
    memory::recharge(p.tensor, Category::kParameters);
  }
  make_optimizer(arguments.optimizer, all);
}

std::string Strategy::cut_message(const nn::Parameter& p) const {
  return fmt::format(
      "{} updates a parameter only as a whole, and {} cuts '{}', [{}], among ranks: take ddp, "
      "zero1, zero2 or zero3, which leave it whole, without tensor parallelism, or AdamW",
      optimizer_->settings().kind, held_.mode(), p.name, fmt::join(p.whole_sizes(), ", "));
}

// Ranks that differ would average the gradients of one parameter and update another way each.
void Strategy::make_optimizer(const optim::OptimizerFactory& make,
                              const std::vector<at::Tensor>& parameters) {
  mesh_.verify_same_at({"pipeline"}, "the optimizer and its parameter groups", [&] {
    if (make) optimizer_ = make(parameters);
    if (!optimizer_) throw Error("there is no optimizer: the function that makes it returned none");
    optim::check_settings(optimizer_->settings());
    std::string groups;
    for (const nn::Parameter& p : list_.parameters) {
      if (optimizer_->needs_whole() && p.placement.is_cut()) throw Error(cut_message(p));
      groups += fmt::format("parameter '{}' in group {}\n", p.name, optimizer_->group_of(p.tensor));
    }
    return groups;
  });
}

Strategy::~Strategy() = default;

void Strategy::broadcast_first_values() {
  for (std::size_t i = 0; i < count(); ++i) {
    fill_first_value(i);
    communicator_.broadcast(memory::raw(parameter(i)), /*root=*/0, Purpose::kSetup).wait();
  }
  broadcast_buffers();
}

void Strategy::send_first_value(std::size_t index, int owner) {
  const int rank = communicator_.rank();
  const at::Tensor tensor = memory::raw(parameter(index));
  if (rank == 0 || rank == owner) fill_first_value(index);
  if (owner == 0) return;
  if (rank == 0) communicator_.send(tensor, owner, Purpose::kSetup).wait();
  if (rank == owner) communicator_.recv(tensor, 0, Purpose::kSetup).wait();
}

// Allocates the parameter; on rank 0, also asks the source for its first value.
void Strategy::fill_first_value(std::size_t index) {
  const Charge charge(Category::kParameters);
  const bool had_values = memory::has_storage(parameter(index));
  memory::allocate_storage(parameter(index));
  if (communicator_.rank() == 0 && !had_values) write_first_value(index, parameter(index));
}

void Strategy::write_first_value(std::size_t index, at::Tensor out) {
  nn::fill_part(*values_, list_.parameters[index], out);
}

void Strategy::broadcast_buffers() {
  train::broadcast_buffers(module_, communicator_, Purpose::kSetup);
  held_.note_storages();
}

at::Tensor Strategy::forward(const std::function<at::Tensor()>& pass,
                             std::optional<std::int64_t> loss_terms) {
  held_.verify_not_released();
  held_.verify_storages();
  verify_weights();
  held_.finish_others();
  return passes_.forward(pass, loss_terms);
}

void Strategy::backward(const at::Tensor& loss) {
  if (!passes_.forwards().is_fresh(loss)) {
    throw Error(
        "backward() of a loss whose forward() came before the last update: its gradients would be "
        "those of weights that are gone; call forward() again after the update");
  }
  if (awaits_reduction_) {
    throw Error(
        "backward() a second time before finish_backward(): call finish_backward() after every "
        "backward(). In a step of several micro-batches, call set_requires_gradient_sync(false) "
        "before each backward() except the last");
  }
  awaits_reduction_ = reduces_now();
  passes_.backward(loss, reduces_now());
}

void Strategy::reduce_in_backward(std::vector<UnitSchedule::Item> items,
                                  UnitSchedule::Reduce reduce, Units units) {
  passes_.schedule().set_items(std::move(items), std::move(reduce), units, /*in_backward=*/true);
}

void Strategy::reduce_after_backward(std::vector<UnitSchedule::Item> items,
                                     UnitSchedule::Reduce reduce) {
  passes_.schedule().set_items(std::move(items), std::move(reduce), Units::kWhole,
                               /*in_backward=*/false);
}

void Strategy::finish_backward() {
  if (!reduces_now()) return;
  passes_.schedule().reduce_all();
  // Drops gradients of parameters that no rank used, unless report() does so later. On a tensor
  // axis, adds up those on the residual stream. Adds up the averages of micro-batches if each was
  // reduced by itself. Changes no other.
  averaged_.complete(/*is_last_micro_batch=*/requires_gradient_sync_);
  if (requires_gradient_sync_) optimizer_->finish_taking();
  awaits_reduction_ = false;
}

void Strategy::optimizer_step() {
  finish_parameters();
  passes_.prepare_update();
  update();
  passes_.weights_changed();
}

void Strategy::update() {
  if (!optimizer_->is_offloaded()) return optimizer_->step();
  verify_weights();
  change_on_all_ranks("the update failed, load a checkpoint", [this] { optimizer_->step(); });
}

void Strategy::change_on_all_ranks(const std::string& what, const std::function<void()>& change) {
  try {
    dist::run_on_all_ranks(mesh_.world(), what, change);
    failure_.clear();
  } catch (const std::exception& error) {
    failure_ = message_of(error);
    throw;
  }
}

void Strategy::verify_weights() const {
  if (!failure_.empty()) throw Error(failure_);
}

void Strategy::zero_grad() {
  passes_.forget_gradients();
  for (std::size_t i = 0; i < count(); ++i) {
    drop_gradient(i);
    if (owns(i)) placement(i).updated.tensor.mutable_grad().reset();
  }
  awaits_reduction_ = false;
  averaged_.forget();
}

float Strategy::clip_grad_norm(double max_norm) {
  const dist::CallScope call(mesh_.world(), "Strategy::clip_grad_norm");
  return averaged_.clip(max_norm);
}

void Strategy::set_loss_scale(double scale) {
  optimizer_->set_gradient_scale(scale);
  averaged_.set_loss_scale(scale);
}

void Strategy::unshard(std::size_t unit) {
  const dist::CallScope call(mesh_.world(), "Strategy::unshard");
  if (unit >= list_.units.size()) {
    throw Error(fmt::format("there is no unit {}: the model has {}", unit, list_.units.size()));
  }
  const nn::Unwatched unwatched;  // in a forward of a plain module these are no reads of its own
  verify_weights();
  gather_by_name(unit, passes_.is_running() ? Gather::kOther : Gather::kRead);
  finish_parameters();          // the caller may write where other ranks read until now
  communicator_.synchronize();  // the host is about to read
  if (!schedule().is_held(unit)) {
    collect_writes();  // what was written before the scope is refused
    shown_.note(unit);
  }
  passes_.schedule().hold(unit);
}

void Strategy::gather_by_name(std::size_t unit, Gather why) {
  const dist::CallScope scope = naming(unit);
  gather(unit, why);
}

dist::CallScope Strategy::naming(std::size_t unit) const {
  const std::string_view name = list_.units[unit].name;
  return {mesh_.world(), "", name.empty() ? "the root" : name};
}

void Strategy::reshard(std::size_t unit) {
  const nn::Unwatched unwatched;
  UnitSchedule& schedule = passes_.schedule();
  schedule.release(unit);
  if (!schedule.is_held(unit)) {
    shown_.note_writes(unit);
    keep_writes(unit);
    for (const std::size_t i : list_.units[unit].parameters) note_possible_write(i);
  }
  // backward() drops everything at its end.
  if (!passes_.in_backward()) schedule.drop(unit);
}

void Strategy::verify_writes() {
  held_.verify_storages();
  const ParameterWrites all = collect_writes();
  dist::exchange(mesh_, {.problem = all.refused(), .topics = {all.topic()}});
  forget_writes();
}

// An optimizer that keeps a copy of what it updates (optim::with_master_weights()) looks at version
// counters. The tensor that it holds has another one than the parameter that the program sees.
void Strategy::note_possible_write(std::size_t index) const {
  const at::Tensor& mine = placement(index).updated.tensor;
  if (!mine.defined() || mine.is_same(parameter(index))) return;
  torch::autograd::impl::bump_version(mine);
}

void Strategy::release() {
  const dist::CallScope call(mesh_.world(), "Strategy::release");
  held_.verify_not_released();
  zero_grad();
  verify_writes();
  std::vector<at::Tensor> values(count());
  for (std::size_t u = 0; u < list_.units.size(); ++u) {
    unshard(u);
    const auto end = c10::make_scope_exit([this, u] { reshard(u); });
    const Charge charge(Category::kParameters);
    for (const std::size_t i : list_.units[u].parameters) {
      values[i] = memory::raw(parameter(i)).clone().flatten();
    }
  }
  passes_.remove_hooks();
  held_.release(values);
}

std::int64_t Strategy::gathers(std::size_t unit) const {
  const std::int64_t uses = schedule().uses(unit), once = uses > 0 ? 1 : 0;
  return unit == kRoot ? once : uses + once;
}

std::vector<std::size_t> Strategy::backward_order() const {
  std::vector<std::size_t> order;
  for (std::size_t i = count(); i-- > 0;) {
    if (parameter(i).requires_grad()) order.push_back(i);
  }
  return order;
}

at::Tensor& Strategy::gradient_to_reduce(std::size_t index) {
  at::Tensor& grad = gradient(index);
  averaged_.note_used(index, grad.defined());
  if (!grad.defined()) {
    const Charge charge(Category::kGradients);
    grad = at::zeros_like(memory::raw(parameter(index)));
  }
  return grad;
}

void Strategy::note_used(const std::vector<std::size_t>& indices) {
  for (const std::size_t i : indices) averaged_.note_used(i, gradient(i).defined());
}

Placements Strategy::whole(const nn::ParameterList& list) {
  Placements all;
  // The parameters themselves: other tensors over their bytes would keep those that they lose.
  for (const nn::Parameter& p : list.parameters)
    all.of.push_back({{p.tensor}, {p.tensor}, {p.tensor}});
  return all;
}

// Called by all ranks, of which some may have nothing of a parameter that is cut.
void Strategy::verify_whole() const {
  if (!optimizer_->needs_whole()) return;
  std::string problem;
  for (std::size_t i = 0; i < count(); ++i) {
    const at::Tensor& mine = placement(i).updated.tensor;
    if (!mine.defined() || mine.sizes() == parameter(i).sizes()) continue;
    problem = cut_message(list_.parameters[i]);
    break;
  }
  dist::exchange(mesh_, {.problem = problem});
}

void Strategy::shard_optimizer(Placements placements) {
  placements_ = std::move(placements);
  verify_whole();
  std::unordered_map<const at::TensorImpl*, std::size_t> index;
  for (std::size_t i = 0; i < count(); ++i) index[parameter(i).unsafeGetTensorImpl()] = i;
  optimizer_->replace([&](const at::Tensor& tensor) {
    const auto found = index.find(tensor.unsafeGetTensorImpl());
    return found == index.end() ? at::Tensor() : placement(found->second).updated.tensor;
  });
}

}  // namespace zero::train
