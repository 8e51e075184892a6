#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include <zero/base/error.hpp>
#include <zero/nn/suppress_gradient_hooks.hpp>
#include <zero/train/backward/backward_schedule.hpp>

namespace zero::train {

BackwardSchedule::BackwardSchedule(const nn::ParameterList& list, std::vector<Item> items,
                                   Actions actions)
    : list_(list),
      items_(std::move(items)),
      actions_(std::move(actions)),
      item_of_(list.size(), items_.size()),
      of_unit_(list.units.size()),
      states_(items_.size(), State::kAbsent),
      missing_(items_.size(), 0),
      uses_(list.units.size(), 1),
      pending_uses_(list.units.size(), 0),
      outside_uses_(list.units.size(), 0) {
  for (std::size_t k = items_.size(); k-- > 0;) order_.push_back(k);
  if (reshards()) {
    std::stable_sort(order_.begin(), order_.end(), [this](std::size_t a, std::size_t b) {
      return items_[a].unit > items_[b].unit;
    });
  }
  for (const std::size_t k : order_) {
    of_unit_[items_[k].unit].push_back(k);
    for (const std::size_t i : items_[k].parameters) item_of_[i] = k;
  }
}

std::vector<BackwardSchedule::Item> BackwardSchedule::one_by_one(const nn::ParameterList& list) {
  std::vector<Item> items;
  for (std::size_t i = 0; i < list.size(); ++i) items.push_back({list.parameters[i].unit, {i}});
  return items;
}

void BackwardSchedule::begin_forward(bool trains) {
  if (in_forward_) pending_uses_ = before_forward_;
  in_forward_ = true;
  trains_ = trains;
  before_forward_ = pending_uses_;
  // Evaluation is not part of a step.
  if (trains) uses_.assign(uses_.size(), 0);
}

void BackwardSchedule::enter_forward(std::size_t u) {
  leave_units_for(u);
  if (!c10::GradMode::is_enabled()) return;
  if (!in_forward_ && !in_backward_) ++outside_uses_[u];
  if (!in_forward_ || !trains_) return;
  ++uses_[u];
  ++pending_uses_[u];
}

void BackwardSchedule::begin_backward(bool reduces) {
  if (std::exchange(in_forward_, false)) pending_uses_ = before_forward_;
  in_backward_ = true;
  reduces_ = reduces;
  next_ = 0;
  for (std::size_t k = 0; k < items_.size(); ++k) {
    const auto& members = items_[k].parameters;
    missing_[k] = static_cast<std::size_t>(std::ranges::count_if(
        members, [this](auto i) { return list_.parameters[i].tensor.requires_grad(); }));
    states_[k] = missing_[k] == 0 ? State::kAbsent : State::kFilling;
  }
}

void BackwardSchedule::enter_backward(std::size_t u) {
  leave_units_for(u);
  running_.push_back(u);
}

void BackwardSchedule::gradient_ready(std::size_t parameter) {
  const std::size_t k = item_of_[parameter];
  if (k == items_.size()) return;
  if (states_[k] == State::kReduced) {
    throw Error(fmt::format(
        "the gradient of '{}' came after it was reduced: is the parameter used outside of its "
        "unit? (or backward() was called twice before finish_backward())",
        list_.parameters[parameter].name));
  }
  if (missing_[k] == 0 || --missing_[k] > 0) return;
  const std::size_t u = items_[k].unit;
  if (reshards()) {
    if (!has_turn(u) || is_held(u)) return;  // reduced when the unit is over
    // Drop parameters first: the reduction then allocates without them on top.
    if (is_finished(u)) actions_.reshard(u);
  }
  // Calls Actions::reduce, from the chapter's constructor: now, or after the items before it.
  reduce_in_order(k);
}

// True if no gradient of `u` can come any more and none of its parameters will be read. A frozen
// one may be, for the gradient of the unit's input.
bool BackwardSchedule::is_finished(std::size_t u) const {
  const auto has_all = [this](std::size_t k) { return missing_[k] == 0; };
  const auto trains = [this](std::size_t i) { return list_.parameters[i].tensor.requires_grad(); };
  return std::ranges::all_of(of_unit_[u], has_all) &&
         std::ranges::all_of(list_.units[u].parameters, trains);
}

bool BackwardSchedule::has_turn(std::size_t u) const {
  return !running_.empty() && running_.back() == u && !list_.has_inner(u) && pending(u) <= 1;
}

std::size_t BackwardSchedule::end_use() {
  const std::size_t u = running_.back();
  running_.pop_back();
  if (pending_uses_[u] == 0) {
    end_outside_use(u);
  } else {
    --pending_uses_[u];
  }
  return u;
}

void BackwardSchedule::leave_units_for(std::size_t u) {
  // Gradients of a part under activation checkpointing are announced when all of it has ended.
  if (nn::SuppressGradientHooks::active()) return;
  std::vector<std::size_t> over;
  while (!running_.empty() && (running_.back() == u || !list_.lies_within(u, running_.back()))) {
    const std::size_t left = end_use();
    if (left != u && pending(left) == 0) over.push_back(left);
  }
  for (const std::size_t left : over) end_unit(left);
}

void BackwardSchedule::end_unit(std::size_t u) {
  if (!reshards()) return;
  actions_.reshard(u);
  if (is_held(u)) return;
  // Parameters of the unit that this rank's batch has not used by now get no gradient.
  for (const std::size_t k : of_unit_[u]) reduce_in_order(k);
}

// `item` gets no more gradients. Reduces, in order, every item that may go now; if one before
// `item` is still filling, `item` waits.
void BackwardSchedule::reduce_in_order(std::size_t item) {
  if (!reduces_) return;
  if (states_[item] == State::kFilling) states_[item] = State::kWaiting;
  for (; next_ < order_.size(); ++next_) {
    State& state = states_[order_[next_]];
    if (state == State::kFilling) return;
    if (state == State::kWaiting) {
      state = State::kReduced;
      actions_.reduce(order_[next_]);
    }
  }
}

void BackwardSchedule::end_units() {
  while (!running_.empty()) end_use();
  in_backward_ = false;
}

void BackwardSchedule::reduce_rest() {
  for (const std::size_t k : order_) reduce_in_order(k);
  give_up();
}

void BackwardSchedule::give_up() {
  if (std::exchange(in_backward_, false)) {
    // An exception has left backward(), at the same place on all ranks. Until then a rank may have
    // reduced items that others have not, whose batches leave out a parameter: all reduce all.
    forget_uses();
    for (const std::size_t k : order_) reduce_in_order(k);
  }
  end_units();
  states_.assign(states_.size(), State::kAbsent);
  missing_.assign(missing_.size(), 0);
  reduces_ = false;
}

void BackwardSchedule::forget_uses() {
  pending_uses_.assign(pending_uses_.size(), 0);
  outside_uses_.assign(outside_uses_.size(), 0);
}

void BackwardSchedule::forget_forwards() {
  give_up();
  forget_uses();
  in_forward_ = false;
}

}  // namespace zero::train
