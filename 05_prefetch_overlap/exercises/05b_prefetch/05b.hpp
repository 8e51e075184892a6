#pragma once

#include <utility>
#include <vector>

namespace exercise_05b {

/// The units of a model, numbered from 0, each cut over all ranks.
class Units {
 public:
  virtual ~Units() = default;
  virtual int count() const = 0;
  /// True from start_gather() to reshard().
  virtual bool is_gathered(int unit) const = 0;
  /// Allocates the bytes of a unit that is not gathered, starts to gather it, and returns at once.
  virtual void start_gather(int unit) = 0;
  /// Blocks until a unit that was started is whole. Does nothing if it is.
  virtual void wait_gather(int unit) = 0;
  /// Gives the bytes of a gathered unit back. Waits for the gather first, if it is still in flight.
  virtual void reshard(int unit) = 0;
};

/// What the functions know from one call to the next.
struct Plan {
  int lookahead = 0;               ///< how many units are gathered ahead
  std::vector<int> expected = {};  ///< in which order units should run; at first a guess
  std::vector<int> seen = {};      ///< those that have run in this pass; empty at its beginning
  bool lost = false;               ///< for your use; false at the first call
};

/// What an answer consists of. All ranks run the same units, each at most once in a pass.
struct Answer {
  /// `unit` is about to run.
  void (*before_unit)(Units& units, Plan& plan, int unit);
  /// `unit` has run.
  void (*after_unit)(Units& units, Plan& plan, int unit);
  /// The pass is over.
  void (*end_pass)(Units& units, Plan& plan);
};

}  // namespace exercise_05b
