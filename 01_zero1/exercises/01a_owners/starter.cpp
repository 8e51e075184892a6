#include "01a.hpp"

using zero::dist::Communicator;

std::vector<int> owners_of(const std::vector<at::Tensor>& parameters,
                           const Communicator& communicator) {
  // parameters[i].nbytes() are its bytes, communicator.size() is the number of ranks.
  return {};
}
