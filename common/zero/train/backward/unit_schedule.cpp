#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <utility>

#include <zero/base/error.hpp>
#include <zero/nn/unit.hpp>
#include <zero/train/backward/unit_schedule.hpp>

namespace zero::train {

UnitSchedule::UnitSchedule(const nn::ParameterList& list, Actions actions)
    : list_(list),
      actions_(std::move(actions)),
      item_of_(list.size(), 0),
      unit_state_(list.units.size()) {}

std::vector<UnitSchedule::Item> UnitSchedule::one_by_one(const nn::ParameterList& list) {
  std::vector<Item> items;
  for (std::size_t i = 0; i < list.size(); ++i) items.push_back({list.parameters[i].unit, {i}});
  return items;
}

void UnitSchedule::set_items(std::vector<Item> items, Reduce reduce, Units units,
                             bool in_backward) {
  items_ = std::move(items);
  reduce_ = std::move(reduce);
  units_ = units;
  if (units_ == Units::kGatheredOnce) {
    // When the root begins, all units are gathered.
    actions_.gather = [gather = std::move(actions_.gather), count = list_.units.size()](
                          std::size_t u, Gather why) {
      const bool begins = why == Gather::kForward || why == Gather::kBackward;
      if (u != 0 || !begins) return gather(u, why);
      for (std::size_t each = 0; each < count; ++each) gather(each, why);
    };
  }
  reduces_in_backward_ = in_backward;
  item_state_.assign(items_.size(), State::kAbsent);
  missing_.assign(items_.size(), 0);
  item_of_.assign(list_.size(), items_.size());
  for (std::size_t k = items_.size(); k-- > 0;) order_.push_back(k);
  if (drops()) {
    std::stable_sort(order_.begin(), order_.end(), [this](std::size_t a, std::size_t b) {
      return items_[a].unit > items_[b].unit;
    });
  }
  for (const std::size_t k : order_) {
    unit_state_[items_[k].unit].items.push_back(k);
    for (const std::size_t i : items_[k].parameters) item_of_[i] = k;
  }
}

bool UnitSchedule::trains(std::size_t parameter) const {
  return list_.parameters[parameter].tensor.requires_grad();
}

std::size_t UnitSchedule::trainable_members(std::size_t item) const {
  return static_cast<std::size_t>(
      std::ranges::count_if(items_[item].parameters, [this](auto i) { return trains(i); }));
}

// ---- forward

void UnitSchedule::begin_forward(bool trains) {
  if (in_forward_) restore_pending();
  in_forward_ = true;
  trains_ = trains;
  for (UnitState& unit : unit_state_) {
    unit.before_forward = unit.pending;
    if (trains) unit.uses = 0;  // an evaluation is not part of a step
  }
}

void UnitSchedule::restore_pending() {
  for (UnitState& unit : unit_state_) unit.pending = unit.before_forward;
}

void UnitSchedule::enter_forward(std::size_t u, Gather why) {
  leave_units_for(u);
  if (c10::GradMode::is_enabled()) {
    UnitState& unit = unit_state_[u];
    if (!in_forward_ && !in_backward_) ++unit.outside;
    if (in_forward_ && trains_) {
      ++unit.uses;
      ++unit.pending;
    }
  }
  actions_.gather(u, why);
  ++unit_state_[u].running;
}

void UnitSchedule::leave_forward(std::size_t u) {
  if (unit_state_[u].running > 0) --unit_state_[u].running;
  // Unit 0 is the root.
  const bool waits_for_backward = u == 0 || units_ == Units::kGatheredOnce;
  if (!c10::GradMode::is_enabled() || !waits_for_backward) drop(u);
}

void UnitSchedule::stop_forwards() {
  for (UnitState& unit : unit_state_) unit.running = 0;
}

// ---- backward

void UnitSchedule::begin_backward(bool reduces) {
  if (std::exchange(in_forward_, false)) restore_pending();
  in_backward_ = true;
  reduces_ = reduces && reduces_in_backward_;
  next_ = 0;
  for (std::size_t k = 0; k < items_.size(); ++k) {
    missing_[k] = trainable_members(k);
    item_state_[k] = missing_[k] == 0 ? State::kAbsent : State::kFilling;
  }
  stop_forwards();  // of a unit that was run by itself and threw
  for (UnitState& unit : unit_state_) {
    if (unit.is_kept = unit.was_read; unit.is_kept) ++unit.holders;
  }
  for (std::size_t u = 0; u < unit_state_.size(); ++u) {
    if (unit_state_[u].is_kept) actions_.gather(u, Gather::kOther);
  }
}

void UnitSchedule::enter_backward(std::size_t u) {
  note_backward(u);
  leave_units_for(u);
  in_turn_.push_back(u);
  actions_.gather(u, Gather::kBackward);
}

void UnitSchedule::gradient_ready(std::size_t parameter) {
  const std::size_t k = item_of_[parameter];
  if (k == items_.size()) return;
  if (item_state_[k] == State::kReduced) {
    throw Error(fmt::format(
        "the gradient of '{}' came after it was reduced: is the parameter used outside of its "
        "unit? (or backward() was called twice before finish_backward())",
        list_.parameters[parameter].name));
  }
  if (missing_[k] == 0 || --missing_[k] > 0) return;
  const std::size_t u = items_[k].unit;
  if (drops()) {
    if (!has_turn(u) || is_held(u)) return;  // reduced when the unit is over
    // Drop parameters first: the reduction then allocates without them on top.
    if (is_finished(u)) drop(u);
  }
  // Calls Reduce, from the chapter's constructor: now, or after the items before it.
  reduce_in_order(k);
}

// True if no gradient of `u` can come any more and none of its parameters will be read. A frozen
// one may be, for the gradient of the unit's input.
bool UnitSchedule::is_finished(std::size_t u) const {
  return std::ranges::all_of(unit_state_[u].items, [this](auto k) { return missing_[k] == 0; }) &&
         std::ranges::all_of(list_.units[u].parameters, [this](auto i) { return trains(i); });
}

bool UnitSchedule::has_turn(std::size_t u) const {
  return !in_turn_.empty() && in_turn_.back() == u && !list_.has_inner(u) && pending(u) <= 1;
}

std::size_t UnitSchedule::end_use() {
  const std::size_t u = in_turn_.back();
  in_turn_.pop_back();
  if (unit_state_[u].pending == 0) {
    end_outside_use(u);
  } else {
    --unit_state_[u].pending;
  }
  return u;
}

void UnitSchedule::end_uses() {
  while (!in_turn_.empty()) end_use();
}

void UnitSchedule::end_outside_use(std::size_t u) {
  if (unit_state_[u].outside > 0) --unit_state_[u].outside;
}

void UnitSchedule::leave_units_for(std::size_t u) {
  // Gradients of a part under activation checkpointing are announced when all of it has ended.
  if (nn::SuppressGradientHooks::active()) return;
  std::vector<std::size_t> over;
  while (!in_turn_.empty() && (in_turn_.back() == u || !list_.lies_within(u, in_turn_.back()))) {
    const std::size_t left = end_use();
    if (left != u && pending(left) == 0) over.push_back(left);
  }
  for (const std::size_t left : over) end_unit(left);
}

void UnitSchedule::end_unit(std::size_t u) {
  if (!drops()) return;
  drop(u);
  if (is_held(u)) return;
  // Parameters of the unit that this rank's batch has not used by now get no gradient.
  for (const std::size_t k : unit_state_[u].items) reduce_in_order(k);
}

// `item` gets no more gradients. Reduces, in order, every item that may go now; if one before
// `item` is still filling, `item` waits.
void UnitSchedule::reduce_in_order(std::size_t item) {
  if (!reduces_) return;
  if (item_state_[item] == State::kFilling) item_state_[item] = State::kWaiting;
  for (; next_ < order_.size(); ++next_) {
    State& state = item_state_[order_[next_]];
    if (state == State::kFilling) return;
    if (state == State::kWaiting) {
      state = State::kReduced;
      reduce_(order_[next_]);
    }
  }
}

void UnitSchedule::stop_backward() {
  for (UnitState& unit : unit_state_) {
    unit.has_begun = false;
    if (std::exchange(unit.is_kept, false)) --unit.holders;
  }
}

void UnitSchedule::end_backward() {
  in_backward_ = false;
  drop_all();  // before reductions allocate
  for (const std::size_t k : order_) reduce_in_order(k);
  reset();
}

void UnitSchedule::reduce_all() {
  if (reduces_in_backward_) return;
  for (const std::size_t k : order_) {
    if (trainable_members(k) > 0) reduce_(k);
  }
}

// ---- other uses

void UnitSchedule::hold(std::size_t u) {
  if (unit_state_[u].holders++ == 0) unit_state_[u].graphs_at_hold = graphs_of(u);
}

void UnitSchedule::release(std::size_t u) {
  UnitState& unit = unit_state_[u];
  if (unit.holders > 0) --unit.holders;
  if (!is_held(u) && !in_backward_ && graphs_of(u) > unit.graphs_at_hold) unit.was_read = true;
}

std::size_t UnitSchedule::first_held() const {
  const auto found =
      std::ranges::find_if(unit_state_, [](const auto& unit) { return unit.holders > 0; });
  return static_cast<std::size_t>(found - unit_state_.begin());
}

std::int64_t UnitSchedule::graphs_of(std::size_t u) const {
  std::int64_t graphs = 0;
  for (const std::size_t i : list_.units[u].parameters) {
    // Every graph that a parameter is part of ends in this node.
    const at::Tensor& parameter = list_.parameters[i].tensor;
    if (const auto node = torch::autograd::impl::try_get_grad_accumulator(parameter)) {
      graphs += static_cast<std::int64_t>(node.use_count());
    }
  }
  return graphs;
}

void UnitSchedule::enter_other_pass(std::size_t u) {
  end_outside_use(u);
  std::vector<std::size_t> over;
  while (!other_pass_.empty() && !list_.lies_within(u, other_pass_.back())) {
    over.push_back(other_pass_.back());
    other_pass_.pop_back();
  }
  if (u != 0) other_pass_.push_back(u);
  for (const std::size_t left : over) drop(left);
  actions_.gather(u, Gather::kOther);
}

void UnitSchedule::end_other_pass() {
  for (const std::size_t u : std::exchange(other_pass_, {})) drop(u);
}

// ---- ends

void UnitSchedule::drop(std::size_t u) {
  if (is_in_use(u) || (units_ == Units::kGatheredOnce && in_backward_)) return;
  actions_.drop(u);
}

void UnitSchedule::drop_all() {
  for (std::size_t u = 0; u < unit_state_.size(); ++u) drop(u);
}

void UnitSchedule::give_up() {
  if (std::exchange(in_backward_, false)) {
    // An exception has left backward(), at the same place on all ranks. Until then a rank may have
    // reduced items that others have not, whose batches leave out a parameter: all reduce all.
    forget_uses();
    for (const std::size_t k : order_) reduce_in_order(k);
  }
  reset();
}

// The next backward begins anew.
void UnitSchedule::reset() {
  end_uses();
  item_state_.assign(item_state_.size(), State::kAbsent);
  missing_.assign(missing_.size(), 0);
  reduces_ = false;
}

void UnitSchedule::forget_uses() {
  for (UnitState& unit : unit_state_) unit.pending = unit.outside = 0;
}

void UnitSchedule::forget_forwards() {
  give_up();
  forget_uses();
  in_forward_ = false;
  drop_all();
}

void UnitSchedule::forget_reads() {
  for (UnitState& unit : unit_state_) unit.was_read = false;
}

}  // namespace zero::train
