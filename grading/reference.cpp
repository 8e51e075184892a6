#include "reference.hpp"

#define ZERO_EXERCISE ""  // needed to compile main(); nothing calls it
#include "grading.hpp"    // has the program's headers: its own includes below then do nothing

namespace zero::exercise {

namespace ddp {
#include <00_simple_ddp/minimal.cpp>
}  // namespace ddp

namespace ddp_with_sums {
#define all_reduce(gradient, purpose) all_reduce(gradient, purpose, zero::dist::ReduceOp::kSum)
#include <00_simple_ddp/minimal.cpp>
#undef all_reduce
}  // namespace ddp_with_sums

namespace hsdp {
#include <06_hsdp/minimal.cpp>
}  // namespace hsdp

namespace hsdp_with_sums {
#define div_(ranks) div_(1)
#include <06_hsdp/minimal.cpp>
#undef div_
}  // namespace hsdp_with_sums

namespace ddp_with_last {
#define all_reduce(gradient, purpose) \
  broadcast((gradient).div_(communicator.size()), communicator.size() - 1, purpose)
#include <00_simple_ddp/minimal.cpp>
#undef all_reduce
}  // namespace ddp_with_last

std::string train_ddp(dist::Communicator& communicator) { return ddp::train(communicator); }
std::string train_ddp_with_sums(dist::Communicator& communicator) {
  return ddp_with_sums::train(communicator);
}
std::string train_ddp_with_last(dist::Communicator& communicator) {
  return ddp_with_last::train(communicator);
}
std::string train_hsdp(dist::Communicator& communicator) { return hsdp::train(communicator); }
std::string train_hsdp_with_sums(dist::Communicator& communicator) {
  return hsdp_with_sums::train(communicator);
}

}  // namespace zero::exercise
