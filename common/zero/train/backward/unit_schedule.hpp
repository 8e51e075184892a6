#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include <zero/nn/parameters.hpp>

namespace zero::train {

/// Why the parameters of a unit must be whole.
enum class Gather : std::uint8_t {
  kForward,   ///< its forward begins
  kBackward,  ///< its backward begins
  kAgain,     ///< a checkpoint inside backward runs its forward again
  kOther,     ///< another pass of autograd, or a read while a pass runs
  kRead,      ///< the program reads or writes them outside of passes
};

/// What happens to the parameters of units while passes run.
enum class Units : std::uint8_t {
  kWhole,         ///< they stay whole: nothing
  kAwaited,       ///< the same, but they may still arrive: gather() waits before a forward
  kGathered,      ///< gathered before forward and before backward, and dropped after each
  kGatheredOnce,  ///< gathered before forward, and dropped when backward is over
};

/// Decides which units are whole, which gradients may be reduced now, and in which order. It is
/// told of each event of a pass, and counts for each unit who uses it.
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
class UnitSchedule {
 public:
  /// Parameters whose gradients are reduced together.
  struct Item {
    std::size_t unit;                     ///< the unit of all these parameters
    std::vector<std::size_t> parameters;  ///< indices into ParameterList::parameters
  };

  struct Actions {
    /// Makes the parameters of a unit whole on all ranks. Does nothing if they are, unless they
    /// were rounded on the way and the program is to read them (Gather::kRead).
    std::function<void(std::size_t unit, Gather why)> gather;
    /// Drops what this rank does not keep of a unit that nobody uses. Does nothing if it has been
    /// dropped.
    std::function<void(std::size_t unit)> drop;
  };
  /// Reduces an item, or starts to. Called for each item with a trainable parameter, in the same
  /// order on all ranks. Frozen parameters of the item take no part. This rank's gradients may be
  /// missing: see Strategy::gradient_to_reduce().
  using Reduce = std::function<void(std::size_t item)>;

  /// `list` must outlive the schedule. It reduces nothing before set_items().
  UnitSchedule(const nn::ParameterList& list, Actions actions);

  /// One item for each parameter.
  static std::vector<Item> one_by_one(const nn::ParameterList& list);
  /// Every parameter is in one item, or in none if it is never reduced. Items are reduced last to
  /// first; if units are gathered, those of inner units before those of outer ones.
  /// `in_backward`: as soon as they may; otherwise when reduce_all() is called.
  void set_items(std::vector<Item> items, Reduce reduce, Units units, bool in_backward);
  Units units() const { return units_; }
  /// Whether units are dropped, so that gathers and reductions share one order.
  bool drops() const { return units_ == Units::kGathered || units_ == Units::kGatheredOnce; }

  // ---- forward

  /// A forward pass begins. `trains`: a backward follows. If the last forward did not reach
  /// end_forward(), its uses are forgotten.
  void begin_forward(bool trains);
  void end_forward() { in_forward_ = false; }
  /// Unit `u` is about to run: gathers it. Also when it runs again inside backward, under
  /// activation checkpointing.
  void enter_forward(std::size_t u, Gather why);
  /// It has run. A unit may run within itself, such as the root of a model that evaluates inside
  /// its loss: the end of the outermost run counts. The root is last in forward and first in
  /// backward, so it stays whole if a backward follows.
  void leave_forward(std::size_t u);
  /// A pass threw: no forward is running.
  void stop_forwards();
  /// One more backward of unit `u` will come, because a checkpoint inside backward runs it again.
  void expect_backward(std::size_t u) { ++unit_state_[u].pending; }
  /// How often unit `u` ran in the last forward that trains; 1 before the first.
  std::int64_t uses(std::size_t u) const { return unit_state_[u].uses; }

  // ---- backward

  /// A backward pass begins. `reduces`: its gradients are reduced; otherwise they only add up.
  void begin_backward(bool reduces);
  /// The backward of one use of unit `u` begins: gathers it.
  void enter_backward(std::size_t u);
  /// The backward of `u` has begun in this pass, or begins in the next one without a call.
  void note_backward(std::size_t u) { unit_state_[u].has_begun = true; }
  bool has_begun(std::size_t u) const { return unit_state_[u].has_begun; }
  /// The gradient of a parameter is complete. Throws zero::Error if its item has been reduced
  /// already: the gradient would be lost.
  void gradient_ready(std::size_t parameter);
  /// Autograd is done, or threw: units that were held for this backward are not any more.
  void stop_backward();
  /// Autograd is done: drops all units and then reduces, in order, the items that have not been
  /// reduced yet. Other ranks may have gradients that this one lacks.
  void end_backward();
  /// Reduces all items with a trainable parameter, if set_items() has said that they wait for it.
  void reduce_all();

  // ---- other uses

  /// Holds unit `u` whole until release() has been called as often, gathered by the caller.
  void hold(std::size_t u);
  /// Notes whether an operation with a gradient has read the unit since hold(): then its gradients
  /// may come at any time, and each backward until forget_reads() holds it throughout.
  void release(std::size_t u);
  bool is_held(std::size_t u) const { return unit_state_[u].holders > 0; }
  /// Whether it is held, or its forward is running.
  bool is_in_use(std::size_t u) const { return is_held(u) || unit_state_[u].running > 0; }
  /// The first unit that is held; list.units.size() if none is.
  std::size_t first_held() const;
  /// Another backward than this schedule's comes to a use of `u`: gathers it, and drops what that
  /// pass is done with. (The root stays whole from its forward to its backward.)
  void enter_other_pass(std::size_t u);
  void end_other_pass();

  // ---- ends

  /// Drops what nobody uses of unit `u`, or of all.
  void drop(std::size_t u);
  void drop_all();
  /// Makes the next backward begin anew. If the last one did not reach end_backward(), reduces what
  /// it did not, because other ranks may have, and forgets the uses of its forward.
  void give_up();
  /// No backward follows the forwards so far: drops what they have left whole.
  void forget_forwards();
  /// The weights have changed: what was read of them has no backward.
  void forget_reads();

 private:
  enum class State : std::uint8_t {
    kAbsent,   // all its parameters are frozen, or no backward runs
    kFilling,  // gradients are still to come
    kWaiting,  // may be reduced, after those before it
    kReduced,
  };
  struct UnitState {
    std::vector<std::size_t> items;
    std::int64_t running = 0;         // forwards that have begun and not ended
    std::int64_t uses = 1;            // in the last forward that trains
    std::int64_t pending = 0;         // uses whose backward is not over
    std::int64_t outside = 0;         // the same, of units that ran in no forward pass
    std::int64_t before_forward = 0;  // pending at begin_forward()
    std::int64_t holders = 0;
    std::int64_t graphs_at_hold = 0;  // operations that had read it then
    bool was_read = false;            // with a gradient, while held
    bool is_kept = false;             // held by this backward for such a read
    bool has_begun = false;           // its backward, in this pass
  };

  std::int64_t graphs_of(std::size_t u) const;
  std::int64_t pending(std::size_t u) const {
    return unit_state_[u].pending + unit_state_[u].outside;
  }
  std::size_t trainable_members(std::size_t item) const;
  bool trains(std::size_t parameter) const;
  bool has_turn(std::size_t u) const;
  bool is_finished(std::size_t u) const;
  void restore_pending();
  void reset();
  std::size_t end_use();
  void end_uses();
  void end_outside_use(std::size_t u);
  void forget_uses();
  void leave_units_for(std::size_t u);
  void end_unit(std::size_t u);
  void reduce_in_order(std::size_t item);

  const nn::ParameterList& list_;
  Actions actions_;
  Reduce reduce_;
  Units units_ = Units::kWhole;
  bool reduces_in_backward_ = false;
  std::vector<Item> items_;
  std::vector<std::size_t> order_;    // of items
  std::vector<std::size_t> item_of_;  // by parameter

  std::vector<State> item_state_;     // by item
  std::vector<std::size_t> missing_;  // by item: gradients still to come
  std::size_t next_ = 0;              // place in order_ of the first not reduced yet
  bool in_backward_ = false;
  bool reduces_ = false;

  bool in_forward_ = false;
  bool trains_ = false;                  // the forward that runs
  std::vector<UnitState> unit_state_;    // by unit
  std::vector<std::size_t> in_turn_;     // units in backward, outer before inner
  std::vector<std::size_t> other_pass_;  // units that another pass has gathered
};

}  // namespace zero::train
