#include "06d.hpp"

using exercise_06d::Action;
using exercise_06d::Kind;

std::vector<Action> actions(int stage, int stages, int micro_batches) {
  // {Kind::kForward, 0} is the forward of micro-batch 0.
  return {};
}
