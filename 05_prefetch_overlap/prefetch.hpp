#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace zero {

/// Knows which unit comes next, so that its parameters can be on their way when it does.
///
/// One pass (a forward or a backward) is watched first, and the order in which its units came is
/// kept. From then on use() answers, for the unit that runs now, which ones come after it. A pass
/// that runs otherwise gets no more answers until its end: its units are gathered when they come,
/// which is slower and always right.
class Prefetch {
 public:
  explicit Prefetch(std::int64_t lookahead) : lookahead_(lookahead) {}

  /// A pass begins.
  void begin() {
    if (!known_) order_.clear();
    next_ = 0;
    lost_ = false;
  }

  /// Unit `unit` is about to run. The units to be gathered now, nearest first: at most `lookahead`
  /// of those that follow it.
  std::vector<std::size_t> use(std::size_t unit);

  /// The pass that was watched is over: its order holds from now on. Nothing to do later.
  void keep() { known_ = known_ || !order_.empty(); }

  /// Whether the order is known.
  bool known() const { return known_; }
  /// Whether this pass ran otherwise than the one that was watched.
  bool lost() const { return lost_; }
  const std::vector<std::size_t>& order() const { return order_; }

  std::int64_t lookahead() const { return lookahead_; }
  void set_lookahead(std::int64_t lookahead) { lookahead_ = lookahead; }

 private:
  std::int64_t lookahead_;
  std::vector<std::size_t> order_;
  std::size_t next_ = 0;  // position in order_
  bool known_ = false;
  bool lost_ = false;
};

}  // namespace zero
