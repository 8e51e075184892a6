#include <ATen/ops/aminmax.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include <zero/base/error.hpp>
#include <zero/base/scoped_value.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/memory/storage.hpp>
#include <zero/nn/gradient_destination.hpp>
#include <zero/optim/norm.hpp>
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

// The parameters of a model that no strategy has. The error comes on all ranks, also where the
// model is free on some of them: their texts differ in the constructor's exchange.
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
      list_(free_parameters(arguments, granularity)),
      values_(arguments.values),
      accumulation_(arguments.accumulation),
      mode_(arguments.mode.empty() ? "a strategy" : arguments.mode),
      used_(list_.size(), false),
      not_finite_from_(static_cast<std::size_t>(arguments.communicator.size()), false),
      holders_(list_.units.size(), 0),
      uses_at_unshard_(list_.units.size(), 0),
      read_with_gradient_(list_.units.size(), false),
      running_(list_.units.size(), 0),
      entered_(list_.units.size(), false),
      accumulated_(list_.size()) {
  communicator_.set_reduce_type(arguments.reduce_type);
  // Before anything is sent: ranks that differ would send each other the wrong bytes, or wait.
  communicator_.verify_same_on_all_ranks(kModelOrStrategy, description(list_, arguments));
  std::vector<at::Tensor> all;
  for (std::size_t i = 0; i < count(); ++i) {
    all.push_back(parameter(i));
    origins_.push_back(origin(parameter(i)));
  }
  optimizer_ = arguments.optimizer(all);
  // Last: what throws above must leave no hook behind that calls into nothing.
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
  for (std::size_t i = 0; i < count(); ++i) nn::on_gradient_ready(parameter(i), {});
}

Strategy::Origin Strategy::origin(const at::Tensor& tensor) {
  return {tensor.storage().unsafeGetStorageImpl(), memory::has_storage(tensor)};
}

// As an ordinary model is, or as the strategy got it, which it still is where the constructor of
// the chapter's class threw early.
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
    nn::set_gradient_provider(parameter(i), {});
    memory::place(parameter(i), values[i], 0);
  }
  remove_hooks();
  nn::set_holder(model_, "");
  released_ = true;
}

void Strategy::check_not_released() const {
  if (released_) throw Error(fmt::format("{} has released its model: make a new one", mode_));
}

at::Tensor Strategy::forward(const data::Batch& batch) {
  check_not_released();
  const Charge charge(Category::kActivations);
// Where a strategy has put a parameter it must stay: an optimizer may update a shard of that
// memory, and gathers write into it.
void Strategy::check_places() {
  for (std::size_t i = 0; i < count(); ++i) {
    const void* const now = origin(parameter(i)).storage;
    if (i == places_.size()) places_.push_back(now);
    if (places_[i] == now) continue;
    throw Error(fmt::format(
        "parameter '{}' has other memory than in the first forward() under {}: a part of the model "
        "was loaded, cast or moved since, by load(), to() or set_data(); do that before the "
        "strategy is made, or after its release()",
        list_.parameters[i].name, mode_));
  }
}

  end_other_pass();
  at::Tensor loss = naming_unsharded_reads([&] { return model_.loss(batch); });
  check_places();
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
  const Charge charge(Category::kActivations);
  awaits_reduction_ = reduces_now();
  end_other_pass();
  naming_unsharded_reads([&] { run_backward(loss); });
  has_gradients_ = true;
}

void Strategy::run_backward(const at::Tensor& loss) {
  const ScopedValue within(in_backward_, true);
  entered_.assign(entered_.size(), false);
  running_.assign(running_.size(), 0);  // of a forward that threw
  std::vector<std::size_t> read;
  for (std::size_t u = 0; u < holders_.size(); ++u) {
    if (read_with_gradient_[u]) read.push_back(u);
    read_with_gradient_[u] = false;
  }
  const auto end_reading = [&] {
    for (const std::size_t u : read) --holders_[u];
  };
  for (const std::size_t u : read) ++holders_[u];
  try {
    for (const std::size_t u : read) gather(u);
    loss.backward();
  } catch (...) {
    end_reading();
    throw;
  }
  end_reading();
}

void Strategy::Hooks::pre_forward(nn::Unit& unit) {
  strategy_.pre_forward(unit);
  ++strategy_.running_[strategy_.list_.index_of(unit)];
}

void Strategy::Hooks::post_forward(nn::Unit& unit) {
  std::int64_t& running = strategy_.running_[strategy_.list_.index_of(unit)];
  if (running > 0) --running;
  // A unit that runs within itself, such as the root of a model that evaluates inside its loss, is
  // over when the outer one is.
  if (running == 0) strategy_.post_forward(unit);
}

void Strategy::Hooks::pre_backward(nn::Unit& unit) {
  const std::size_t u = strategy_.list_.index_of(unit);
  if (!strategy_.in_backward_) return strategy_.gather_for_other_pass(u);
  strategy_.entered_[u] = true;
  strategy_.pre_backward(unit);
}

void Strategy::Hooks::post_backward(nn::Unit& unit) {
  if (strategy_.in_backward_) strategy_.post_backward(unit);
}

// autograd::grad() called by the model or its user: parameters have no gradients in it.
void Strategy::gather_for_other_pass(std::size_t unit) {
  const auto lies_within = [this](std::size_t u, std::size_t outer) {
    while (u != outer && u != 0) u = list_.units[u].parent;
    return u == outer;
  };
  while (!other_pass_.empty() && !lies_within(unit, other_pass_.back())) {
    drop(other_pass_.back());
    other_pass_.pop_back();
  }
  gather(unit);
  // The root stays, as it does from its forward to its backward.
  if (unit != 0) other_pass_.push_back(unit);
}

void Strategy::end_other_pass() {
  for (const std::size_t u : std::exchange(other_pass_, {})) drop(u);
}

void Strategy::optimizer_step() {
  if (!has_gradients_) {
    throw Error("optimizer_step() before backward(): there are no gradients to step with");
  }
  for (std::size_t u = 0; u < holders_.size(); ++u) {
    if (!is_held(u)) continue;
    throw Error(fmt::format(
        "optimizer_step() while train::UnshardedParameters of unit '{}' lives: what it shows would "
        "be old; end it before the update",
        list_.units[u].name));
  }
  optimizer_->step();
  forwards_.weights_changed();
  read_with_gradient_.assign(read_with_gradient_.size(), false);
}

void Strategy::unshard(std::size_t unit) {
  gather(unit);
  if (holders_[unit]++ == 0) uses_at_unshard_[unit] = uses_in_graphs(unit);
}

void Strategy::reshard(std::size_t unit) {
  if (holders_[unit] > 0) --holders_[unit];
  if (is_held(unit) || in_backward_) return;  // backward() drops everything at its end
  if (uses_in_graphs(unit) > uses_at_unshard_[unit]) read_with_gradient_[unit] = true;
  if (!is_in_use(unit)) drop(unit);
}

std::int64_t Strategy::uses_in_graphs(std::size_t unit) const {
  std::int64_t uses = 0;
  for (const std::size_t i : list_.units[unit].parameters) {
    // Every graph that a parameter is part of ends in this node.
    if (const auto node = torch::autograd::impl::try_get_grad_accumulator(parameter(i))) {
      uses += static_cast<std::int64_t>(node.use_count());
    }
  }
  return uses;
}

void Strategy::zero_grad() {
  for (std::size_t i = 0; i < count(); ++i) drop_gradient(i);
  // A step that was given up may have left averages of earlier micro-batches.
  accumulated_.assign(count(), at::Tensor());
  has_gradients_ = false;
  awaits_reduction_ = false;
  not_finite_from_.assign(static_cast<std::size_t>(communicator_.size()), false);
  suspect_ = false;
}

void Strategy::on_ready(std::size_t index) {
  // Born inside autograd, a gradient looks like an activation until someone says what it is.
  memory::recharge(gradient(index), Category::kGradients);
  if (gradient(index).defined()) {
    check_origin(index);
    if (observer_) observer_(index, gradient(index));
  }
  gradient_ready(index);
}

void Strategy::check_origin(std::size_t index) const {
  const std::size_t u = list_.parameters[index].unit;
  if (!sharded() || !in_backward_ || entered_[u] || is_held(u)) return;
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
  // A flag for each parameter that this rank has used, and one more: it has added up something that
  // is not finite.
  at::Tensor all = at::zeros({static_cast<std::int64_t>(count()) + 1}, at::kInt);
  auto* flags = all.mutable_data_ptr<std::int32_t>();
  for (std::size_t i = 0; i < count(); ++i) flags[i] = used_[i] ? 1 : 0;
  const std::vector<bool> from = communicator_.take_not_finite();
  for (std::size_t r = 0; r < from.size(); ++r) {
    if (!from[r]) continue;
    not_finite_from_[r] = true;
    flags[count()] = 1;
  }
  communicator_.all_reduce(all, Purpose::kControl, dist::ReduceOp::kSum).wait();
  suspect_ = suspect_ || flags[count()] != 0;
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
    // Until the last micro-batch the sum is kept out of backward's way, which would add to it.
    grad = requires_gradient_sync_ ? std::exchange(sum, at::Tensor()) : at::Tensor();
  }
}

std::vector<double> Strategy::sums_by_parameter(double (*sum)(const at::Tensor&)) {
  // Each parameter's sum is made by its owner alone and is exact where others add 0, so that every
  // rank, under every strategy that owns whole parameters, adds the same numbers in the same order.
  // Where tensors are split the partial sums are in double: what their order changes is seen in the
  // float that comes out only where that lies at the edge between two floats.
  at::Tensor sums = at::zeros({static_cast<std::int64_t>(count())}, at::kDouble);
  auto* of_parameter = sums.mutable_data_ptr<double>();
  for (std::size_t i = 0; i < count(); ++i) {
    const ParameterShard mine = piece(i);
    if (mine.tensor.defined() && mine.tensor.grad().defined()) {
      of_parameter[i] = sum(mine.tensor.grad());
    }
  }
  // Where every rank owns everything, each has all the numbers already.
  if (sharded()) communicator_.all_reduce(sums, Purpose::kControl, dist::ReduceOp::kSum).wait();
  return {of_parameter, of_parameter + count()};
}

float Strategy::norm_of_gradients(optim::Norm kind) {
  switch (kind) {
    case optim::Norm::kL1:
      return optim::norm_from_absolute_sums(sums_by_parameter(optim::absolute_sum));
    case optim::Norm::kL2:
      return optim::norm_from_squares(sums_by_parameter(optim::squared_norm));
    case optim::Norm::kInfinity:
      return infinity_norm();
  }
  throw Error("a norm that is none");
}

float Strategy::infinity_norm() {
  at::Tensor by_parameter = at::zeros({static_cast<std::int64_t>(count())}, at::kFloat);
  auto* magnitude = by_parameter.mutable_data_ptr<float>();
  for (std::size_t i = 0; i < count(); ++i) {
    const ParameterShard mine = piece(i);
    if (mine.tensor.defined() && mine.tensor.grad().defined()) {
      magnitude[i] = optim::largest_magnitude(mine.tensor.grad());
    }
  }
  at::Tensor mine = at::full({1}, optim::largest_magnitude(by_parameter), at::kFloat);
  if (!sharded()) return mine.item<float>();
  at::Tensor by_rank = at::empty({communicator_.size()}, at::kFloat);
  communicator_.all_gather(by_rank, mine, Purpose::kControl).wait();
  return optim::largest_magnitude(by_rank);
}

float Strategy::clip_grad_norm(double max_norm, optim::Norm kind) {
  const float norm = norm_of_gradients(kind) / static_cast<float>(gradient_scale_);
  if (!std::isfinite(norm)) return norm;
  const float coefficient = optim::clip_coefficient(norm, max_norm);
  if (coefficient != 1.0F) multiply_gradients(coefficient);
  return norm;
}

void Strategy::scale_gradients(double factor) {
  multiply_gradients(factor);
  suspect_ = true;  // they may overflow now
}

void Strategy::multiply_gradients(double factor) {
  for (std::size_t i = 0; i < count(); ++i) {
    const ParameterShard mine = piece(i);
    if (mine.tensor.defined() && mine.tensor.grad().defined()) {
      mine.tensor.mutable_grad().mul_(factor);
    }
  }
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
}

void Strategy::shard_optimizer() {
  optimizer_->replace([this](const at::Tensor& tensor) {
    for (std::size_t i = 0; i < count(); ++i) {
      if (parameter(i).is_same(tensor)) return piece(i).tensor;
    }
    return at::Tensor();
  });
}

using dist::Purpose;

void Strategy::set_gradient_scale(double scale) {
  optimizer_->set_gradient_scale(scale);
  gradient_scale_ = scale;
}

std::size_t Strategy::first_nonfinite() const {
  std::vector<std::size_t> indices;
  std::vector<at::Tensor> doubts;  // 0 for a finite gradient, else NaN
  for (std::size_t i = 0; i < count(); ++i) {
    const ParameterShard mine = piece(i);
    if (!mine.tensor.defined() || !mine.tensor.grad().defined() || mine.tensor.numel() == 0) {
      continue;
    }
    const auto [least, most] = at::aminmax(memory::raw(mine.tensor.grad()).flatten());
    indices.push_back(i);
    doubts.push_back(((least - least) + (most - most)).to(at::kFloat));
  }
  if (indices.empty()) return count();
  // The host reads once.
  const at::Tensor all = at::stack(doubts).cpu();
  const float* const doubt = all.const_data_ptr<float>();
  const auto found = std::find_if(doubt, doubt + indices.size(), [](float d) { return d != 0; });
  return found == doubt + indices.size() ? count()
                                         : indices[static_cast<std::size_t>(found - doubt)];
}

std::optional<Strategy::NonfiniteGradient> Strategy::nonfinite_gradient() {
  // Averages that were looked at may overflow when they are added to each other.
  const bool looked = communicator_.checks_gradients() && accumulation_ == Accumulation::kLocal;
  if (looked && !suspect_) return std::nullopt;
  communicator_.synchronize();  // the host is about to read
  std::vector<double> mine = {static_cast<double>(first_nonfinite())};
  for (const bool from : not_finite_from_) mine.push_back(from ? 1 : 0);
  const std::vector<double> all = dist::all_gather_scalars(communicator_, mine);
  const auto ranks = static_cast<std::size_t>(communicator_.size());
  std::size_t first = count();
  std::vector<int> holders, sources;
  for (std::size_t r = 0; r < ranks; ++r) {
    const auto of_rank = static_cast<std::size_t>(all[r * (ranks + 1)]);
    first = std::min(first, of_rank);
    if (of_rank < count()) holders.push_back(static_cast<int>(r));
    bool is_source = false;
    for (std::size_t by = 0; by < ranks; ++by) is_source |= all[by * (ranks + 1) + 1 + r] != 0;
    if (is_source) sources.push_back(static_cast<int>(r));
  }
  if (first == count()) return std::nullopt;
  return NonfiniteGradient{first, sources.empty() ? holders : sources};
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
         communicator_.reduced_element_size(parameter(index).scalar_type());
}

}  // namespace zero::train
