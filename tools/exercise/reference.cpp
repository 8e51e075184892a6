#include "reference.hpp"

#define ZERO_EXERCISE ""  // for main(), which is not called
#include "grading.hpp"  // all headers of the program, whose own lines then do nothing in a namespace

namespace zero::exercise {

namespace ddp {
#include <00_simple_ddp/minimal.cpp>
}  // namespace ddp

namespace ddp_with_sums {
#define all_reduce(gradient, purpose) all_reduce(gradient, purpose, zero::dist::ReduceOp::kSum)
#include <00_simple_ddp/minimal.cpp>
#undef all_reduce
}  // namespace ddp_with_sums

std::string train_ddp(dist::Communicator& communicator) { return ddp::train(communicator); }
std::string train_ddp_with_sums(dist::Communicator& communicator) {
  return ddp_with_sums::train(communicator);
}

}  // namespace zero::exercise
