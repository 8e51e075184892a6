#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <utility>

#include <zero/train/backward/unit_use.hpp>

namespace zero::train {

UnitUse::UnitUse(const nn::ParameterList& list)
    : list_(list),
      holders_(list.units.size(), 0),
      uses_at_hold_(list.units.size(), 0),
      was_read_(list.units.size(), false),
      running_(list.units.size(), 0),
      entered_(list.units.size(), false) {}

std::size_t UnitUse::first_held() const {
  const auto found = std::ranges::find_if(holders_, [](std::int64_t n) { return n > 0; });
  return static_cast<std::size_t>(found - holders_.begin());
}

void UnitUse::hold(std::size_t u) {
  if (holders_[u]++ == 0) uses_at_hold_[u] = uses_in_graphs(u);
}

void UnitUse::release(std::size_t u) {
  if (holders_[u] > 0) --holders_[u];
  const bool is_over = !is_held(u) && !in_backward_;
  if (is_over && uses_in_graphs(u) > uses_at_hold_[u]) was_read_[u] = true;
}

bool UnitUse::end_forward(std::size_t u) {
  if (running_[u] > 0) --running_[u];
  return running_[u] == 0;
}

std::vector<std::size_t> UnitUse::begin_backward() {
  in_backward_ = true;
  end_forwards();  // of a unit that was run by itself and threw
  for (std::size_t u = 0; u < was_read_.size(); ++u) {
    if (was_read_[u]) held_by_backward_.push_back(u);
  }
  forget_reads();
  for (const std::size_t u : held_by_backward_) ++holders_[u];
  return held_by_backward_;
}

void UnitUse::end_backward() {
  in_backward_ = false;
  entered_.assign(entered_.size(), false);
  for (const std::size_t u : std::exchange(held_by_backward_, {})) --holders_[u];
}

std::vector<std::size_t> UnitUse::enter_other_pass(std::size_t u) {
  std::vector<std::size_t> over;
  while (!other_pass_.empty() && !list_.lies_within(u, other_pass_.back())) {
    over.push_back(other_pass_.back());
    other_pass_.pop_back();
  }
  if (u != 0) other_pass_.push_back(u);
  return over;
}

std::vector<std::size_t> UnitUse::end_other_pass() { return std::exchange(other_pass_, {}); }

std::int64_t UnitUse::uses_in_graphs(std::size_t u) const {
  std::int64_t uses = 0;
  for (const std::size_t i : list_.units[u].parameters) {
    // Every graph that a parameter is part of ends in this node.
    const at::Tensor& parameter = list_.parameters[i].tensor;
    if (const auto node = torch::autograd::impl::try_get_grad_accumulator(parameter)) {
      uses += static_cast<std::int64_t>(node.use_count());
    }
  }
  return uses;
}

}  // namespace zero::train
