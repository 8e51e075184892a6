#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

#include <zero/base/error.hpp>
#include <zero/base/scoped_value.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/memory/storage.hpp>
#include <zero/nn/gradient_destination.hpp>
#include <zero/train/strategy.hpp>
#include <zero/train/unsharded_read.hpp>

namespace zero::train {

using dist::Purpose;
using memory::Category;
using memory::Charge;

namespace {

constexpr const char* kModelOrStrategy = "the model or the strategy";

// What all ranks must have in common, a line each.
std::string description(const nn::ParameterList& list, const StrategyArguments& arguments) {
  std::string text = fmt::format(
      "variant '{}', ownership by {}, {}\ngradients of 2 bytes reduced in {}\n", arguments.variant,
      name(arguments.ownership),
      arguments.accumulation == Accumulation::kLocal ? "accumulation before the reduction"
                                                     : "a reduction of every micro-batch",
      dist::name(arguments.reduce_type));
  for (const nn::Parameter& p : list.parameters) {
    text += fmt::format("parameter '{}' [{}] {}, {}, of unit '{}'\n", p.name,
                        fmt::join(p.tensor.sizes(), ", "), c10::toString(p.tensor.scalar_type()),
                        p.tensor.requires_grad() ? "trainable" : "frozen", list.units[p.unit].name);
  }
  for (const auto& buffer : arguments.model.named_buffers()) {
    text +=
        fmt::format("buffer '{}' [{}] {}\n", buffer.key(), fmt::join(buffer.value().sizes(), ", "),
                    c10::toString(buffer.value().scalar_type()));
  }
  return text;
}

// The parameters of a model that no other strategy holds. If one does, the error comes on all
// ranks, even where the model is free: those ranks send another text in the constructor's
// comparison.
nn::ParameterList free_parameters(const StrategyArguments& arguments, nn::Granularity granularity) {
  const std::string holder = nn::holder_of(arguments.model);
  if (holder.empty()) return nn::list_parameters(arguments.model, granularity);
  const std::string said = fmt::format("the model is held by {}", holder);
  arguments.communicator.verify_same_on_all_ranks(kModelOrStrategy, said);
  throw Error(
      fmt::format("{}: a strategy gives its model back by release(), called on all ranks; "
                  "else make the model anew",
                  said));
}

}  // namespace

Strategy::Strategy(const StrategyArguments& arguments, nn::Granularity granularity)
    : model_(arguments.model),
      communicator_(arguments.communicator),
      average_(dist::ReduceOp::kAverage, arguments.reduce_type),
      list_(free_parameters(arguments, granularity)),
      values_(arguments.values),
      accumulation_(arguments.accumulation),
      mode_(arguments.mode.empty() ? "a strategy" : arguments.mode),
      used_(list_.size(), false),
      use_(list_),
      averaged_(*this, arguments.accumulation == Accumulation::kReduceEach),
      accumulated_(list_.size()) {
  // First: ranks that differ would send each other the wrong bytes, or wait forever.
  communicator_.verify_same_on_all_ranks(kModelOrStrategy, description(list_, arguments));
  std::vector<at::Tensor> all;
  for (std::size_t i = 0; i < count(); ++i) {
    all.push_back(parameter(i));
    origins_.push_back(origin(parameter(i)));
    // The constructor of a plain module does not say what its tensors are for.
    memory::recharge(parameter(i), Category::kParameters);
  }
  optimizer_ = arguments.optimizer(all);
  // Last: a constructor that throws above must leave no hook that calls into a destroyed object.
  for (std::size_t i = 0; i < count(); ++i) {
    nn::on_gradient_ready(parameter(i), [this, i] { on_ready(i); });
  }
  nn::set_hooks(model_, &hooks_, granularity);
  nn::set_holder(model_, mode_, [this] { finish_parameters(); });
}

Strategy::~Strategy() {
  if (released_) return;
  remove_hooks();
  nn::set_holder(model_, model_is_whole() ? "" : mode_ + ", which was destroyed without release()");
}

void Strategy::remove_hooks() {
  nn::set_hooks(model_, nullptr);
  for (std::size_t i = 0; i < count(); ++i) {
    nn::on_gradient_ready(parameter(i), {});
    nn::set_gradient_provider(parameter(i), {});
  }
}

Strategy::Origin Strategy::origin(const at::Tensor& tensor) {
  return {tensor.storage().unsafeGetStorageImpl(), memory::has_storage(tensor)};
}

// True if every parameter is whole in storage of its own, or still as the strategy got it, because
// the constructor of the chapter's class threw early.
bool Strategy::model_is_whole() const {
  bool untouched = origins_.size() == count();
  bool whole = true;
  for (std::size_t i = 0; i < count(); ++i) {
    const at::Tensor& p = parameter(i);
    const Origin now = origin(p);
    untouched =
        untouched && now.storage == origins_[i].storage && now.has_bytes == origins_[i].has_bytes;
    whole = whole && now.has_bytes && p.storage().nbytes() == p.nbytes();
  }
  return whole || untouched;
}

void Strategy::release() {
  const dist::CallScope call(communicator_, "Strategy::release");
  check_not_released();
  zero_grad();
  std::vector<at::Tensor> values(count());
  for (std::size_t u = 0; u < list_.units.size(); ++u) {
    const UnshardedParameters whole(*this, u);
    const Charge charge(Category::kParameters);
    for (const std::size_t i : list_.units[u].parameters) {
      values[i] = memory::raw(parameter(i)).clone().flatten();
    }
  }
  for (std::size_t i = 0; i < count(); ++i) {
    memory::place(parameter(i), values[i], 0);
  }
  remove_hooks();
  nn::set_holder(model_, "");
  released_ = true;
}

void Strategy::check_not_released() const {
  if (released_) throw Error(fmt::format("{} has released its model: make a new one", mode_));
}

// A parameter must stay where the strategy has put it: an optimizer may update a shard of that
// memory, and gathers write into it.
void Strategy::check_places() const {
  for (std::size_t i = 0; i < places_.size(); ++i) {
    if (places_[i] == origin(parameter(i)).storage) continue;
    throw Error(fmt::format(
        "parameter '{}' has other memory than {} gave it: a part of the model was loaded, cast or "
        "moved since, by load(), to() or set_data(); do that before the strategy is made, or after "
        "its release()",
        list_.parameters[i].name, mode_));
  }
}

template <typename Pass>
auto Strategy::run_pass(const Pass& pass) {
  try {
    return naming_unsharded_reads(pass);
  } catch (...) {
    use_.end_forwards();  // their post_forward() will not be called
    pass_threw_ = true;
    throw;
  }
}

at::Tensor Strategy::forward(const data::Batch& batch) {
  check_not_released();
  check_places();
  const Charge charge(Category::kActivations);
  end_other_pass();
  if (std::exchange(pass_threw_, false)) reshard_all();
  at::Tensor loss = run_pass([&] { return model_.loss(batch); });
  forwards_.add(loss, batch.loss_terms);
  return loss;
}

double Strategy::loss_terms(const at::Tensor& loss) const {
  const auto records = forwards_.of(loss);
  double sum = 0;
  for (const auto& record : records) sum += static_cast<double>(record.loss_terms);
  return records.empty() ? 0 : sum / static_cast<double>(records.size());
}

void Strategy::backward(const at::Tensor& loss) {
  for (const auto& record : forwards_.of(loss)) {
    if (!forwards_.is_stale(record)) continue;
    throw Error(
        "backward() of a loss whose forward() came before the last update: its gradients would be "
        "those of weights that are gone; call forward() again after the update");
  }
  if (awaits_reduction_) {
    throw Error(
        "backward() a second time before finish_backward(): a step of several backward passes "
        "calls both for each of them, with set_requires_gradient_sync(false) before all but the "
        "last");
  }
  awaits_reduction_ = reduces_now();
  end_other_pass();
  begin_backward();
  {
    const Charge charge(Category::kActivations);
    run_pass([&] { run_backward(loss); });
  }
  end_backward();
  has_gradients_ = true;
}

void Strategy::run_backward(const at::Tensor& loss) {
  const ScopedValue within(in_backward_, true);
  struct Reading {
    UnitUse& use;
    ~Reading() { use.end_backward(); }
  } reading{use_};
  for (const std::size_t u : use_.begin_backward()) gather(u);
  loss.backward();
}

void Strategy::Hooks::pre_forward(nn::Unit& unit) {
  strategy_.pre_forward(unit);
  strategy_.use_.begin_forward(strategy_.list_.index_of(unit));
}

void Strategy::Hooks::post_forward(nn::Unit& unit) {
  if (strategy_.use_.end_forward(strategy_.list_.index_of(unit))) strategy_.post_forward(unit);
}

void Strategy::Hooks::pre_backward(nn::Unit& unit) {
  const std::size_t u = strategy_.list_.index_of(unit);
  if (!strategy_.in_backward_) return strategy_.gather_for_other_pass(u);
  strategy_.use_.enter_backward(u);
  strategy_.pre_backward(unit);
}

void Strategy::Hooks::post_backward(nn::Unit& unit) {
  if (strategy_.in_backward_) strategy_.post_backward(unit);
}

// For autograd::grad(), called by the model or its user, and for another backward() that passes
// through the model.
void Strategy::gather_for_other_pass(std::size_t unit) {
  for (const std::size_t over : use_.enter_other_pass(unit)) drop(over);
  gather(unit);
}

void Strategy::end_other_pass() {
  for (const std::size_t u : use_.end_other_pass()) drop(u);
  // Dropped gradients may have left a buffer behind.
  if (std::exchange(has_foreign_buffers_, false)) zero_grad();
}

void Strategy::optimizer_step() {
  if (!has_gradients_) {
    throw Error("optimizer_step() before backward(): there are no gradients to step with");
  }
  if (const std::size_t held = use_.first_held(); held < list_.units.size()) {
    throw Error(fmt::format(
        "optimizer_step() while train::UnshardedParameters of unit '{}' lives: what it shows would "
        "be old; end it before the update",
        list_.units[held].name));
  }
  optimizer_->step();
  forwards_.weights_changed();
  use_.forget_reads();
}

void Strategy::unshard(std::size_t unit) {
  const dist::CallScope call(communicator_, "Strategy::unshard");
  gather(unit);
  use_.hold(unit);
}

void Strategy::reshard(std::size_t unit) {
  use_.release(unit);
  // backward() drops everything at its end.
  if (!in_backward_ && !is_in_use(unit)) drop(unit);
}

void Strategy::reshard_all() {
  for (std::size_t u = 0; u < list_.units.size(); ++u) drop(u);
}

void Strategy::note_used(const std::vector<std::size_t>& indices) {
  for (const std::size_t i : indices) note_used(i, gradient(i).defined());
}

bool Strategy::any_trainable(const std::vector<std::size_t>& indices) const {
  return std::any_of(indices.begin(), indices.end(),
                     [this](std::size_t i) { return trainable(i); });
}

void Strategy::zero_grad() {
  for (std::size_t i = 0; i < count(); ++i) drop_gradient(i);
  // An abandoned step may have left averages of earlier micro-batches.
  accumulated_.assign(count(), at::Tensor());
  has_gradients_ = false;
  awaits_reduction_ = false;
  averaged_.forget();
}

void Strategy::on_ready(std::size_t index) {
  if (!in_backward_) return drop_foreign_gradient(index);
  // Inside autograd a new gradient is charged as an activation: correct that.
  memory::recharge(gradient(index), Category::kGradients);
  if (gradient(index).defined()) {
    check_origin(index);
    if (observer_) observer_(index, gradient(index));
  }
  gradient_ready(index);
}

void Strategy::drop_foreign_gradient(std::size_t index) {
  if (has_gradients_) {
    throw Error(fmt::format(
        "parameter '{}' has a gradient from a backward() that its engine did not run, while the "
        "engine holds gradients of its own step: finish that step first, or freeze the parameter "
        "(requires_grad_(false)) for this pass",
        list_.parameters[index].name));
  }
  drop_gradient(index);
  has_foreign_buffers_ = true;
}

void Strategy::check_origin(std::size_t index) const {
  const std::size_t u = list_.parameters[index].unit;
  if (!sharded() || !in_backward_ || use_.has_entered_backward(u) || is_held(u)) return;
  throw Error(fmt::format(
      "parameter '{}' has a gradient, but the forward of its unit '{}' did not run in "
      "nn::Unit::run(), so that nothing has waited for its values: wrap the unit's forward in "
      "run(), or read the parameter under train::UnshardedParameters",
      list_.parameters[index].name, list_.units[u].name));
}

ParameterShard Strategy::local_shard(std::size_t index) const {
  return memory::has_storage(parameter(index)) ? ParameterShard{parameter(index), 0}
                                               : ParameterShard{};
}

at::Tensor& Strategy::gradient_to_reduce(std::size_t index) {
  at::Tensor& grad = gradient(index);
  used_[index] = grad.defined();
  if (!grad.defined()) {
    const Charge charge(Category::kGradients);
    grad = at::zeros_like(memory::raw(parameter(index)));
  }
  return grad;
}

void Strategy::complete_reduction() {
  complete_flags();
  add_up_micro_batches();
  awaits_reduction_ = false;
}

void Strategy::complete_flags() {
  // A flag for each parameter that this rank has used, and a last one if this rank has added up
  // something that is not finite.
  at::Tensor all = at::zeros({static_cast<std::int64_t>(count()) + 1}, at::kInt);
  auto* flags = all.mutable_data_ptr<std::int32_t>();
  for (std::size_t i = 0; i < count(); ++i) flags[i] = used_[i] ? 1 : 0;
  flags[count()] = averaged_.take_suspicion() ? 1 : 0;
  communicator_.all_reduce(all, Purpose::kControl, dist::ReduceOp::kSum).wait();
  if (flags[count()] != 0) averaged_.suspect();
  for (std::size_t i = 0; i < count(); ++i) {
    if (flags[i] == 0) {
      drop_gradient(i);
      if (const ParameterShard mine = piece(i); mine.tensor.defined())
        mine.tensor.mutable_grad().reset();
    }
    used_[i] = false;
  }
}

void Strategy::add_up_micro_batches() {
  if (accumulation_ == Accumulation::kLocal) return;
  for (std::size_t i = 0; i < count(); ++i) {
    const ParameterShard mine = piece(i);
    at::Tensor& grad = mine.tensor.defined() ? mine.tensor.mutable_grad() : gradient(i);
    at::Tensor& sum = accumulated_[i];
    if (mine.tensor.defined() && grad.defined()) {
      if (sum.defined()) {
        sum.add_(grad);
      } else {
        sum = grad;
      }
    }
    // Until the last micro-batch, keep the sum out of `.grad`, where backward would add to it.
    grad = requires_gradient_sync_ ? std::exchange(sum, at::Tensor()) : at::Tensor();
  }
}

float Strategy::clip_grad_norm(double max_norm, optim::Norm kind) {
  const dist::CallScope call(communicator_, "Strategy::clip_grad_norm");
  return averaged_.clip(max_norm, kind, gradient_scale_);
}

void Strategy::scale_gradients(double factor) {
  averaged_.multiply(factor);
  averaged_.suspect();  // they may overflow now
}

void Strategy::fill(std::size_t index) {
  const Charge charge(Category::kParameters);
  at::Tensor tensor = parameter(index);
  const bool had_values = memory::has_storage(tensor);
  memory::allocate_storage(tensor);
  if (communicator_.rank() == 0 && !had_values) first_value(index, tensor);
}

void Strategy::first_value(std::size_t index, at::Tensor out) {
  if (values_ == nullptr) {
    throw Error(fmt::format("parameter '{}' has no values and no source of first values was given",
                            list_.parameters[index].name));
  }
  values_->fill(list_.parameters[index], out);
}

void Strategy::broadcast_from_rank_0() {
  for (std::size_t i = 0; i < count(); ++i) {
    fill(i);
    communicator_.broadcast(memory::raw(parameter(i)), /*root=*/0, Purpose::kSetup).wait();
  }
  broadcast_buffers_from_rank_0();
}

void Strategy::broadcast_buffers_from_rank_0() {
  for (const at::Tensor& buffer : model_.buffers()) {
    communicator_.broadcast(memory::raw(buffer), /*root=*/0, Purpose::kSetup).wait();
  }
  // The parameters lie where they stay by now.
  for (std::size_t i = 0; i < count(); ++i) places_.push_back(origin(parameter(i)).storage);
}

void Strategy::shard_optimizer() {
  std::unordered_map<const at::TensorImpl*, std::size_t> index;
  for (std::size_t i = 0; i < count(); ++i) index[parameter(i).unsafeGetTensorImpl()] = i;
  optimizer_->replace([&](const at::Tensor& tensor) {
    const auto found = index.find(tensor.unsafeGetTensorImpl());
    return found == index.end() ? at::Tensor() : piece(found->second).tensor;
  });
}

void Strategy::set_gradient_scale(double scale) {
  optimizer_->set_gradient_scale(scale);
  gradient_scale_ = scale;
}

std::int64_t Strategy::trainable_bytes() const {
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < count(); ++i) {
    if (trainable(i)) sum += list_.parameters[i].bytes();
  }
  return sum;
}

std::int64_t Strategy::optimizer_bytes() const {
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < count(); ++i) {
    const at::Tensor mine = piece(i).tensor;
    if (!mine.defined()) continue;
    if (trainable(i) || optimizer_->steps(mine) > 0) sum += optimizer_->state_bytes(mine);
  }
  return sum;
}

std::int64_t Strategy::reduced_bytes() const {
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < count(); ++i) {
    if (trainable(i)) sum += reduced_bytes_of(i);
  }
  return sum;
}

std::int64_t Strategy::reduced_owned_bytes() const {
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < count(); ++i) {
    if (trainable(i) && owns(i)) sum += reduced_bytes_of(i);
  }
  return sum;
}

std::int64_t Strategy::reduced_bytes_of(std::size_t index) const {
  return parameter(index).numel() *
         communicator_.reduced_element_size(parameter(index).scalar_type(), average_.type);
}

}  // namespace zero::train
