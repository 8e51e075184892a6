#include "00a.hpp"

using zero::dist::Communicator;
using zero::dist::Purpose;
using zero::dist::ReduceOp;

void all_reduce(Communicator& communicator, at::Tensor tensor) {
  // Each collective returns a handle: .wait() on it returns when the result is there. The purpose
  // is Purpose::kGradient.
}
