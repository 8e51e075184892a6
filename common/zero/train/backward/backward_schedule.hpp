#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include <zero/nn/parameters.hpp>

namespace zero::train {

/// Decides what may be reduced now, and in which order, while backward runs.
///
/// Ranks must start collectives in the same order, or wrong tensors meet, or ranks wait for each
/// other forever. Autograd may finish two parameters in different orders on two ranks, for example
/// if one rank skips a branch. So the order of reductions is fixed beforehand: the reverse of
/// registration, which is close to the order in which backward runs. An item that is complete early
/// waits until all items before it have been reduced.
///
/// Chapter 02 needs no more. Chapter 03 gathers units in backward too, and gathers and reductions
/// must share one order. Units begin their backward in the same order on all ranks, and so do their
/// gathers. Reductions may not: if a rank's batch leaves a parameter out, the rank never completes
/// that item. It would reduce it after the next gather, the other ranks before. So the items of a
/// unit are reduced in the unit's turn: from its first gradient until another unit begins. By then
/// all gradients of the unit have come, because autograd runs the latest operations first. No
/// gather happens within a turn, so it does not matter when in its turn a rank reduces.
///
/// There are two exceptions. A unit that is used several times has its turn in its last backward.
/// Units inside another one are gathered during its backward, so its own items are reduced when it
/// is over, and those of the root at the end of backward.
class BackwardSchedule {
 public:
  /// Parameters whose gradients are reduced together.
  struct Item {
    std::size_t unit;                     ///< the unit of all these parameters
    std::vector<std::size_t> parameters;  ///< indices into ParameterList::parameters
  };

  struct Actions {
    /// Reduces an item, or starts to. Called for each item with a trainable parameter, in the same
    /// order on all ranks. Frozen parameters of the item take no part. This rank's gradients may be
    /// missing: see Strategy::gradient_to_reduce().
    std::function<void(std::size_t item)> reduce;
    /// Drops the parameters of a unit that backward does not need any more. Empty if parameters
    /// stay whole: then an item may be reduced as soon as it is complete.
    std::function<void(std::size_t unit)> reshard = {};
    /// Whether parameters of a unit are in use elsewhere, so that more gradients may come: its
    /// items are reduced at the end of backward. Empty: never.
    std::function<bool(std::size_t unit)> is_held = {};
  };

  /// `list` must outlive the schedule. Every parameter is in one item, or in none if it is never
  /// reduced. Items are reduced last to first; if units are resharded, those of inner units before
  /// those of outer ones.
  BackwardSchedule(const nn::ParameterList& list, std::vector<Item> items, Actions actions);

  /// One item for each parameter.
  static std::vector<Item> one_by_one(const nn::ParameterList& list);

  /// Whether Actions::reshard is there.
  bool reshards() const { return static_cast<bool>(actions_.reshard); }

  /// A forward pass begins. `trains`: a backward follows. If the last forward did not reach
  /// end_forward(), its uses are forgotten.
  void begin_forward(bool trains);
  void end_forward() { in_forward_ = false; }
  /// Call before unit `u` runs and its parameters are gathered; also when it runs again inside
  /// backward, under activation checkpointing.
  void enter_forward(std::size_t u);
  /// One more backward of unit `u` will come, because a checkpoint inside backward runs it again.
  void expect_backward(std::size_t u) { ++pending_uses_[u]; }
  /// Call when a backward that is not this schedule's begins for a use of unit `u`.
  void end_outside_use(std::size_t u) {
    if (outside_uses_[u] > 0) --outside_uses_[u];
  }
  /// How often unit `u` ran in the last forward that trains; 1 before the first.
  std::int64_t uses(std::size_t u) const { return uses_[u]; }

  /// A backward pass begins. `reduces`: its gradients are reduced; otherwise they only add up.
  void begin_backward(bool reduces);
  /// Call before the backward of one use of unit `u` begins and its parameters are gathered.
  void enter_backward(std::size_t u);
  /// The gradient of a parameter is complete. Throws zero::Error if its item has been reduced
  /// already: the gradient would be lost.
  void gradient_ready(std::size_t parameter);
  /// Autograd is done: no unit is in its backward any more.
  void end_units();
  /// Reduces, in order, the items that have not been reduced yet. Other ranks may have gradients
  /// that this one lacks.
  void reduce_rest();

  /// Makes the next backward begin anew. If the last one did not reach end_units(), reduces what it
  /// did not, because other ranks may have, and forgets the uses of its forward.
  void give_up();
  /// Call when the weights change: no backward follows the forwards so far.
  void forget_forwards();

 private:
  enum class State : std::uint8_t {
    kAbsent,   // all its parameters are frozen
    kFilling,  // gradients are still to come
    kWaiting,  // may be reduced, after those before it
    kReduced,
  };

  bool is_held(std::size_t u) const { return actions_.is_held && actions_.is_held(u); }
  std::int64_t pending(std::size_t u) const { return pending_uses_[u] + outside_uses_[u]; }
  bool has_turn(std::size_t u) const;
  bool is_finished(std::size_t u) const;
  std::size_t end_use();
  void forget_uses();
  void leave_units_for(std::size_t u);
  void end_unit(std::size_t u);
  void reduce_in_order(std::size_t item);

  const nn::ParameterList& list_;
  std::vector<Item> items_;
  Actions actions_;
  std::vector<std::size_t> order_;                 // of items
  std::vector<std::size_t> item_of_;               // by parameter
  std::vector<std::vector<std::size_t>> of_unit_;  // items

  std::vector<State> states_;         // by item
  std::vector<std::size_t> missing_;  // by item: gradients still to come
  std::size_t next_ = 0;              // place in order_ of the first not reduced yet
  bool in_backward_ = false;
  bool reduces_ = false;

  bool in_forward_ = false;
  bool trains_ = false;                       // the forward that runs
  std::vector<std::int64_t> uses_;            // by unit
  std::vector<std::int64_t> pending_uses_;    // by unit: uses whose backward is not over
  std::vector<std::int64_t> outside_uses_;    // the same, of units that ran in no forward pass
  std::vector<std::int64_t> before_forward_;  // pending_uses_ at begin_forward()
  std::vector<std::size_t> running_;          // units in backward, outer before inner
};

}  // namespace zero::train
