// expects: owns .* times the mean: numel.. counts elements
#include "01a.hpp"

using zero::dist::Communicator;

std::vector<int> owners_of(const std::vector<at::Tensor>& parameters,
                           const Communicator& communicator) {
  std::vector<std::size_t> order(parameters.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return parameters[a].numel() > parameters[b].numel();
  });
  std::vector<std::size_t> owned(static_cast<std::size_t>(communicator.size()));
  std::vector<int> owners(parameters.size());
  for (const std::size_t i : order) {
    const auto least = std::min_element(owned.begin(), owned.end());
    *least += parameters[i].numel();  // wrong: an element of bfloat16 has 2 bytes
    owners[i] = static_cast<int>(least - owned.begin());
  }
  return owners;
}
