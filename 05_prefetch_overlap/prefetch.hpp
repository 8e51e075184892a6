#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace zero {

/// Predicts which unit comes next, so that its parameters can be gathered before it runs.
///
/// Remembers the order in which the units of a pass (a forward or a backward) ran, and expects the
/// next pass to run in the same order: use() returns the units that follow the one that runs now.
/// If a pass runs in another order, use() returns no more units in it: each is gathered when it
/// comes, which is slower but always right. keep() makes an order the expected one.
class Prefetch {
 public:
  explicit Prefetch(std::int64_t lookahead) : lookahead_(lookahead) {}

  /// A pass begins.
  void begin() {
    seen_.clear();
    lost_ = false;
  }

  /// Call when `unit` is about to run. Returns the units to gather now, nearest first: at most
  /// `lookahead` of those that follow it.
  std::vector<std::size_t> use(std::size_t unit);

  /// Whether this pass, which has ended, ran in another order than expected.
  bool is_new() const { return lost_ || seen_.size() != order_.size(); }
  /// Expects this order from now on, which all ranks must do after the same pass.
  void keep(std::vector<std::size_t> order) { order_ = std::move(order); }

  /// Whether an order is expected.
  bool known() const { return !order_.empty(); }
  /// Whether the unit that runs now is the last that is expected in this pass.
  bool at_end() const { return known() && !lost_ && seen_.size() == order_.size(); }
  /// Whether this pass ran in another order than expected.
  bool lost() const { return lost_; }
  /// The units of this pass so far, in the order in which they ran.
  const std::vector<std::size_t>& seen() const { return seen_; }

 private:
  std::int64_t lookahead_;
  std::vector<std::size_t> order_;  // expected
  std::vector<std::size_t> seen_;   // in this pass
  bool lost_ = false;
};

}  // namespace zero
