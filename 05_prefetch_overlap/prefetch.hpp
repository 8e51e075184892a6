#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace zero {

/// Knows which unit comes next, so that its parameters can be on their way when it does.
///
/// The order in which the units of a pass (a forward or a backward) came is kept, and the next pass
/// is expected to be like it: use() answers, for the unit that runs now, which ones come after it.
/// A pass that runs otherwise gets no more answers: its units are gathered when they come, which is
/// slower and always right. In the end it is what the next pass is expected to be like.
class Prefetch {
 public:
  explicit Prefetch(std::int64_t lookahead) : lookahead_(lookahead) {}

  /// A pass begins.
  void begin() {
    seen_.clear();
    lost_ = false;
  }

  /// Unit `unit` is about to run. The units to be gathered now, nearest first: at most `lookahead`
  /// of those that follow it.
  std::vector<std::size_t> use(std::size_t unit);

  /// The pass is over. True where its order is news, which is expected from now on. A pass that is
  /// not kept, such as an evaluation, changes no expectation.
  bool keep() {
    if (known() && !lost_ && seen_.size() == order_.size()) return false;
    order_ = seen_;
    return known();
  }

  /// Whether an order is expected.
  bool known() const { return !order_.empty(); }
  /// Whether the unit that runs now is, as expected, the last of its pass.
  bool at_end() const { return known() && !lost_ && seen_.size() == order_.size(); }
  /// Whether this pass ran otherwise than expected.
  bool lost() const { return lost_; }
  const std::vector<std::size_t>& order() const { return order_; }

  std::int64_t lookahead() const { return lookahead_; }
  void set_lookahead(std::int64_t lookahead) { lookahead_ = lookahead; }

 private:
  std::int64_t lookahead_;
  std::vector<std::size_t> order_;  // expected
  std::vector<std::size_t> seen_;   // in this pass
  bool lost_ = false;
};

}  // namespace zero
