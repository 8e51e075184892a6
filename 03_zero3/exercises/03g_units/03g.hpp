#pragma once

#include <utility>
#include <vector>

/// ZeRO-3 for a model of any shape. Units and parameters are numbered from 0; unit 0 is the root.
namespace exercise_03g {

/// A piece of a model's forward: it reads a parameter, or runs a unit, which has pieces of its own.
struct Piece {
  bool is_unit;
  int number;               ///< of the parameter or unit
  std::vector<Piece> body;  ///< of a unit
};

inline Piece reads(int parameter) { return {false, parameter, {}}; }
inline Piece runs(int unit, std::vector<Piece> body) { return {true, unit, std::move(body)}; }

/// The units of a model, as one rank has them.
class Units {
 public:
  virtual ~Units() = default;
  /// Whether `inner` lies inside `outer`, at any depth. False if they are the same unit.
  virtual bool contains(int outer, int inner) const = 0;
  /// The parameters that belong to a unit, and to no unit inside it: the same on all ranks.
  virtual const std::vector<int>& parameters(int unit) const = 0;
  /// Whether this rank has a gradient of a parameter. Its batch may not have used it.
  virtual bool has_gradient(int parameter) const = 0;

  virtual bool is_whole(int unit) const = 0;
  /// Makes a unit whole that is not. A collective.
  virtual void gather(int unit) = 0;
  /// Drops the parameters of a unit. Sends nothing.
  virtual void drop(int unit) = 0;
  /// Averages the gradient of a parameter over all ranks on its owner. A rank that has none sends
  /// zeros. A collective.
  virtual void reduce(int parameter) = 0;
};

/// For your use. New at the start of training, and then kept from step to step.
struct Schedule {
  explicit Schedule(int units) : uses(static_cast<std::size_t>(units)) {}
  std::vector<int> uses;              ///< by unit, at first 0
  std::vector<int> in_backward = {};  ///< units
};

/// What an answer consists of.
struct Answer {
  /// Your model, as it runs on a rank.
  Piece (*model)(int rank);
  /// Called before and after each run of a unit's forward.
  void (*forward_begins)(Units& units, Schedule& schedule, int unit);
  void (*forward_ends)(Units& units, Schedule& schedule, int unit);
  /// Called for each run of a unit, before the first operation of its backward.
  void (*backward_begins)(Units& units, Schedule& schedule, int unit);
  /// Called when autograd is done.
  void (*backward_done)(Units& units, Schedule& schedule);
};

}  // namespace exercise_03g
