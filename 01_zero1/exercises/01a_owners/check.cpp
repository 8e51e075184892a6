// Compares the lists of all ranks, and the largest share with that of the rule.

#include <fmt/format.h>

#include <tools/exercise/check.hpp>

#include "01a.hpp"

namespace exercise_01a {

using zero::dist::Communicator;
using zero::exercise::Mistake;
using Sizes = std::vector<std::int64_t>;  // elements of float32

// A language model of two layers with the embedding at the end, many equal sizes, and few.
const std::vector<Sizes> kModels = {
    {8, 640, 320, 320, 640, 8, 1700, 1700, 8, 640, 320, 320, 640, 8, 1700, 1700, 8, 5000},
    {100, 100, 100, 100, 100, 100, 100, 100, 100, 100, 100},
    {30, 70}};

// Parameters of these sizes in one block, each rank with an order of its own, so that addresses do
// not agree.
std::vector<at::Tensor> parameters_of(const Sizes& sizes, int rank) {
  const std::int64_t all = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
  const at::Tensor block = at::zeros({all});
  std::vector<at::Tensor> parameters(sizes.size());
  std::int64_t begin = 0;
  for (std::size_t k = 0; k < sizes.size(); ++k) {
    const std::size_t i = (rank % 2 == 0) ? k : sizes.size() - 1 - k;
    parameters[i] = block.narrow(0, begin, sizes[i]);
    begin += sizes[i];
  }
  return parameters;
}

// Bytes of the rank that owns most.
std::int64_t most_owned(const std::vector<int>& owners, const Sizes& sizes, int ranks) {
  Sizes owned(static_cast<std::size_t>(ranks));
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    owned[static_cast<std::size_t>(owners[i])] += 4 * sizes[i];
  }
  return *std::max_element(owned.begin(), owned.end());
}

// Parameters in this order, each to the rank with least so far.
std::vector<int> greedy(const std::vector<std::size_t>& order, const Sizes& sizes, int ranks) {
  Sizes owned(static_cast<std::size_t>(ranks));
  std::vector<int> owners(sizes.size());
  for (const std::size_t i : order) {
    const auto least = std::min_element(owned.begin(), owned.end());
    *least += sizes[i];
    owners[i] = static_cast<int>(least - owned.begin());
  }
  return owners;
}

std::string cause(const std::vector<int>& owners, const Sizes& sizes, int ranks) {
  std::vector<std::size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::vector<std::int64_t> count(static_cast<std::size_t>(ranks));
  bool in_turn = true;
  for (const std::size_t i : order) {
    in_turn = in_turn && owners[i] == static_cast<int>(i) % ranks;
    ++count[static_cast<std::size_t>(owners[i])];
  }
  if (in_turn) return "parameter i goes to rank i mod N, whatever its size is";
  if (owners == greedy(order, sizes, ranks)) {
    return "parameters are given out in the order of the list, not the largest first";
  }
  const auto [fewest, most] = std::minmax_element(count.begin(), count.end());
  if (*most - *fewest <= 1) return "the ranks own equal numbers of parameters, not of bytes";
  return "largest first, each to the rank with fewest bytes, comes closer";
}

// Called by all ranks.
void check_agreement(const std::vector<int>& owners, const Sizes& sizes, Communicator& group) {
  const auto all = all_gather_scalars(group, {owners.begin(), owners.end()});
  for (std::size_t k = 0; k < all.size(); ++k) {
    const std::size_t i = k % owners.size();
    if (all[k] == all[i]) continue;
    throw Mistake(fmt::format(
        "rank {} gives parameter {} of {} bytes to rank {}, and rank 0 gives it to rank {}: decide "
        "by what is the same on all ranks",
        k / owners.size(), i, 4 * sizes[i], all[k], all[i]));
  }
}

void check_model(const Answer& answer, Communicator& group, const Sizes& sizes) {
  const int ranks = group.size();
  const std::vector<int> owners = answer.owners_of(parameters_of(sizes, group.rank()), group);
  if (owners.size() != sizes.size()) {
    throw Mistake(fmt::format("rank {} gives an owner to {} of {} parameters", group.rank(),
                              owners.size(), sizes.size()));
  }
  for (std::size_t i = 0; i < owners.size(); ++i) {
    if (0 <= owners[i] && owners[i] < ranks) continue;
    throw Mistake(
        fmt::format("parameter {} is given to rank {}, which does not exist", i, owners[i]));
  }
  check_agreement(owners, sizes, group);

  std::vector<std::size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return sizes[a] > sizes[b]; });
  const std::int64_t most = most_owned(owners, sizes, ranks);
  if (most <= most_owned(greedy(order, sizes, ranks), sizes, ranks)) return;
  const double all = 4.0 * std::accumulate(sizes.begin(), sizes.end(), 0.0);
  throw Mistake(fmt::format("one rank owns {:.3f} times the mean: {}",
                            static_cast<double>(most) * ranks / all, cause(owners, sizes, ranks)));
}

void check(const Answer& answer) {
  zero::exercise::on_all_ranks([&](Communicator& group) {
    for (const Sizes& sizes : kModels) check_model(answer, group, sizes);
  });
}

}  // namespace exercise_01a
