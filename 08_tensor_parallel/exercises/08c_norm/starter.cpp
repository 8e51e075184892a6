#include "08c.hpp"

using exercise_08c::Gradient;
using zero::dist::Communicator;
using zero::dist::Purpose;
using zero::dist::ReduceOp;

double gradient_norm(const std::vector<Gradient>& gradients, Communicator& data,
                     Communicator& tensor) {
  return 0;
}
