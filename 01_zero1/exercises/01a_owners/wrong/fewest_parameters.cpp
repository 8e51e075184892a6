// expects: owns .* times the mean: the ranks own equal numbers of parameters
#include "01a.hpp"

using zero::dist::Communicator;

std::vector<int> owners_of(const std::vector<at::Tensor>& parameters,
                           const Communicator& communicator) {
  std::vector<std::size_t> order(parameters.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return parameters[a].nbytes() > parameters[b].nbytes();
  });
  std::vector<std::size_t> owned(static_cast<std::size_t>(communicator.size()));
  std::vector<int> owners(parameters.size());
  for (const std::size_t i : order) {
    const auto least = std::min_element(owned.begin(), owned.end());
    *least += 1;  // wrong: counts parameters, not bytes
    owners[i] = static_cast<int>(least - owned.begin());
  }
  return owners;
}
