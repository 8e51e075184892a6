// expects: rank 1 gives parameter .* of .* bytes to rank .*, and rank 0 gives it to rank
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
    int least = communicator.rank();  // wrong: of ranks with the same load each rank takes itself
    for (int rank = 0; rank < communicator.size(); ++rank) {
      if (owned[rank] < owned[least]) least = rank;
    }
    owned[least] += parameters[i].nbytes();
    owners[i] = least;
  }
  return owners;
}
