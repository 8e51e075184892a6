// expects: owns .* times the mean: parameter i goes to rank i mod N
#include "01a.hpp"

using zero::dist::Communicator;

std::vector<int> owners_of(const std::vector<at::Tensor>& parameters,
                           const Communicator& communicator) {
  std::vector<int> owners;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    owners.push_back(static_cast<int>(i) % communicator.size());  // wrong: sizes do not matter
  }
  return owners;
}
