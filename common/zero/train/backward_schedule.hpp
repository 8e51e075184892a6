#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include <zero/nn/parameters.hpp>
#include <zero/nn/suppress_gradient_hooks.hpp>

namespace zero::train {

/// Tells when a reduction may start from inside backward, where units are gathered in backward too.
///
/// Ranks have to start collectives in one order, or they wait for each other for ever. Gathers are
/// no problem: units begin their backward in the same order on all ranks. Gradients are: a batch
/// that leaves a parameter out never completes what it belongs to, and its rank would reduce after
/// the next gather what others have reduced before it. So what belongs to a unit goes in the unit's
/// turn: from its first gradient until another unit begins, which is when the last gradient has
/// come (autograd runs what was made last first, so nothing of the unit can still be to come). No
/// gather happens in between, and so it does not matter when in its turn a rank sends.
///
/// There are two exceptions. A unit that is used several times has its turn at its last use. A unit
/// with other units within has gathers in its midst: nothing of it goes before it is over, and of
/// the root nothing before the end of backward.
class BackwardSchedule {
 public:
  explicit BackwardSchedule(const nn::ParameterList& list) : pending_uses_(list.units.size(), 0) {
    for (std::size_t u = 0; u < pending_uses_.size(); ++u) {
      parent_.push_back(list.units[u].parent);
      has_inner_.push_back(list.has_inner(u));
    }
  }

  /// Unit `u` runs in a forward that a backward will follow; also in a part under activation
  /// checkpointing (its first run, not when it runs again).
  void used(std::size_t u) { ++pending_uses_[u]; }

  /// A use of unit `u` is about to begin, backward, or forward again in a checkpointed part:
  /// something of it will be gathered. Gives the units whose turn is over: all gradients that this
  /// rank will ever have of them are there. Gives none inside the backward of a checkpointed part:
  /// the gradients of the part are announced together when it has ended.
  std::vector<std::size_t> leave_for(std::size_t u) {
    if (nn::SuppressGradientHooks::active()) return {};
    std::vector<std::size_t> over;
    while (!running_.empty() && (running_.back() == u || !lies_within(u, running_.back()))) {
      const std::size_t left = end_use();
      if (left != u && pending_uses_[left] == 0) over.push_back(left);
    }
    return over;
  }

  /// It begins backward.
  void enter(std::size_t u) { running_.push_back(u); }

  /// Whether what is complete of unit `u` may go at once.
  bool open(std::size_t u) const {
    return !running_.empty() && running_.back() == u && !has_inner_[u] && pending_uses_[u] <= 1;
  }

  /// The end of a backward pass, or of one that was given up: nothing runs any more.
  void end() {
    while (!running_.empty()) end_use();
  }

  /// The uses, by unit, whose backward is not over; and back to them, where a forward threw.
  const std::vector<std::size_t>& pending_uses() const { return pending_uses_; }
  void restore(std::vector<std::size_t> pending_uses) { pending_uses_ = std::move(pending_uses); }

  /// The end of a step: forgets the forward passes that no backward has followed.
  void forget() {
    end();
    pending_uses_.assign(pending_uses_.size(), 0);
  }

 private:
  std::size_t end_use() {
    const std::size_t u = running_.back();
    running_.pop_back();
    if (pending_uses_[u] > 0) --pending_uses_[u];
    return u;
  }

  bool lies_within(std::size_t u, std::size_t outer) const {
    while (u != outer && u != 0) u = parent_[u];
    return u == outer;
  }

  std::vector<std::size_t> parent_;        // by unit
  std::vector<bool> has_inner_;            // by unit
  std::vector<std::size_t> pending_uses_;  // by unit: uses whose backward is not over
  std::vector<std::size_t> running_;       // units in backward, outer before inner
};

}  // namespace zero::train
