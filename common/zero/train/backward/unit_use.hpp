#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <zero/nn/parameters.hpp>

namespace zero::train {

/// Units whose parameters are in use though their own hooks do not say so, so that a strategy keeps
/// them whole: units held for reading (Strategy::unshard()), units whose forward is running, and
/// units gathered for a pass of autograd other than Strategy::backward(). Sends nothing.
class UnitUse {
 public:
  /// `list` must outlive this object.
  explicit UnitUse(const nn::ParameterList& list);

  /// True from hold() until release() has been called as often.
  bool is_held(std::size_t u) const { return holders_[u] > 0; }
  /// Whether it is held, or its forward is running.
  bool is_in_use(std::size_t u) const { return is_held(u) || running_[u] > 0; }
  /// The first unit that is held; list.units.size() if none is.
  std::size_t first_held() const;

  void hold(std::size_t u);
  /// Notes whether an operation with a gradient has read the unit since hold().
  void release(std::size_t u);

  void begin_forward(std::size_t u) { ++running_[u]; }
  /// True if no forward of the unit is running any more. A unit may run within itself, such as the
  /// root of a model that evaluates inside its loss.
  bool end_forward(std::size_t u);
  /// A pass threw or ended: no forward is running.
  void end_forwards() { running_.assign(running_.size(), 0); }

  /// Returns the units that were read with a gradient while they were held. They stay held until
  /// end_backward(), because their gradients may come at any time.
  std::vector<std::size_t> begin_backward();
  void end_backward();
  /// Forgets those reads: the weights have changed.
  void forget_reads() { was_read_.assign(was_read_.size(), false); }
  /// The backward of a unit has begun in this backward pass, or begins in the next one without a
  /// call.
  void enter_backward(std::size_t u) { entered_[u] = true; }
  bool has_entered_backward(std::size_t u) const { return entered_[u]; }

  /// Call when `u` is gathered for another pass of autograd. Adds `u` to a list (except the root,
  /// which stays whole from its forward to its backward); removes and returns those that the pass
  /// is done with.
  std::vector<std::size_t> enter_other_pass(std::size_t u);
  /// Returns the units of that list and empties it.
  std::vector<std::size_t> end_other_pass();

 private:
  std::int64_t uses_in_graphs(std::size_t u) const;

  const nn::ParameterList& list_;
  // By unit.
  std::vector<std::int64_t> holders_;
  std::vector<std::int64_t> uses_at_hold_;  // uses_in_graphs() then
  std::vector<bool> was_read_;              // with a gradient, while held
  std::vector<std::int64_t> running_;       // forwards that have begun and not ended
  std::vector<bool> entered_;
  bool in_backward_ = false;
  std::vector<std::size_t> held_by_backward_;
  std::vector<std::size_t> other_pass_;
};

}  // namespace zero::train
