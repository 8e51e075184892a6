// expects: owns .* times the mean: parameters are given out in the order of the list
#include "01a.hpp"

using zero::dist::Communicator;

std::vector<int> owners_of(const std::vector<at::Tensor>& parameters,
                           const Communicator& communicator) {
  std::vector<std::size_t> owned(static_cast<std::size_t>(communicator.size()));
  std::vector<int> owners;
  for (const at::Tensor& parameter : parameters) {  // wrong: the largest may come last
    const auto least = std::min_element(owned.begin(), owned.end());
    *least += parameter.nbytes();
    owners.push_back(static_cast<int>(least - owned.begin()));
  }
  return owners;
}
