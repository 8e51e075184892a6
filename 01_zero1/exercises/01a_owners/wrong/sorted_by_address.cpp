// expects: rank 1 gives parameter .* of .* bytes to rank .*, and rank 0 gives it to rank
#include "01a.hpp"

using zero::dist::Communicator;

std::vector<int> owners_of(const std::vector<at::Tensor>& parameters,
                           const Communicator& communicator) {
  std::vector<std::size_t> order(parameters.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    const at::Tensor &left = parameters[a], &right = parameters[b];
    if (left.nbytes() != right.nbytes()) return left.nbytes() > right.nbytes();
    return left.data_ptr() < right.data_ptr();  // wrong: each rank has its own addresses
  });
  std::vector<std::size_t> owned(static_cast<std::size_t>(communicator.size()));
  std::vector<int> owners(parameters.size());
  for (const std::size_t i : order) {
    const auto least = std::min_element(owned.begin(), owned.end());
    *least += parameters[i].nbytes();
    owners[i] = static_cast<int>(least - owned.begin());
  }
  return owners;
}
