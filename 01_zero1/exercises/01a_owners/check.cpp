// Compares the lists of all ranks, and the largest share with that of the rule.

#include <fmt/format.h>

#include <grading/check.hpp>

#include "01a.hpp"

namespace exercise_01a {

using zero::dist::Communicator;
using zero::exercise::Mistake;
using Sizes = std::vector<std::int64_t>;  // by parameter

struct Model {
  Sizes elements;
  std::size_t in_float32 = elements.size();  // the first of them, the others are bfloat16

  at::ScalarType dtype(std::size_t i) const { return i < in_float32 ? at::kFloat : at::kBFloat16; }
  Sizes bytes() const {
    Sizes all = elements;
    for (std::size_t i = 0; i < all.size(); ++i) {
      all[i] *= static_cast<std::int64_t>(c10::elementSize(dtype(i)));
    }
    return all;
  }
};

// A language model of two layers with the embedding at the end, many equal sizes, few, and two
// dtypes.
const std::vector<Model> kModels = {
    {{8, 640, 320, 320, 640, 8, 1700, 1700, 8, 640, 320, 320, 640, 8, 1700, 1700, 8, 5000}},
    {{100, 100, 100, 100, 100, 100, 100, 100, 100, 100, 100}},
    {{30, 70}},
    {{300, 500, 400, 900}, 1}};

// Parameters in one block, each rank with an order of its own, so that addresses do not agree.
std::vector<at::Tensor> parameters_of(const Model& model, int rank) {
  const Sizes bytes = model.bytes();
  const at::Tensor block =
      at::zeros({std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0})}, at::kByte);
  std::vector<at::Tensor> parameters(bytes.size());
  std::int64_t begin = 0;
  for (std::size_t k = 0; k < bytes.size(); ++k) {
    const std::size_t i = (rank % 2 == 0) ? k : bytes.size() - 1 - k;
    parameters[i] = block.narrow(0, begin, bytes[i]).view(model.dtype(i));
    begin += bytes[i];
  }
  return parameters;
}

// Bytes of the rank that owns most.
std::int64_t most_owned(const std::vector<int>& owners, const Sizes& bytes, int ranks) {
  Sizes owned(static_cast<std::size_t>(ranks));
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    owned[static_cast<std::size_t>(owners[i])] += bytes[i];
  }
  return *std::max_element(owned.begin(), owned.end());
}

std::vector<std::size_t> largest_first(const Sizes& sizes) {
  std::vector<std::size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return sizes[a] > sizes[b]; });
  return order;
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

std::string cause(const std::vector<int>& owners, const Model& model, int ranks) {
  const Sizes bytes = model.bytes();
  for (const Sizes& sorted : {bytes, model.elements}) {
    for (const Sizes& added : {bytes, model.elements}) {
      if (owners != greedy(largest_first(sorted), added, ranks)) continue;
      return "numel() counts elements, and the parameters have different dtypes: compare bytes";
    }
  }
  std::vector<std::size_t> order(bytes.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::vector<std::int64_t> count(static_cast<std::size_t>(ranks));
  bool in_turn = true;
  for (const std::size_t i : order) {
    in_turn = in_turn && owners[i] == static_cast<int>(i) % ranks;
    ++count[static_cast<std::size_t>(owners[i])];
  }
  if (in_turn) return "parameter i goes to rank i mod N, whatever its size is";
  if (owners == greedy(order, bytes, ranks)) {
    return "parameters are given out in the order of the list, not the largest first";
  }
  const auto [fewest, most] = std::minmax_element(count.begin(), count.end());
  if (*most - *fewest <= 1) return "the ranks own equal numbers of parameters, not of bytes";
  return "largest first, each to the rank with fewest bytes, comes closer";
}

// Called by all ranks.
void check_agreement(const std::vector<int>& owners, const Sizes& bytes, Communicator& group) {
  const auto all = all_gather_scalars(group, {owners.begin(), owners.end()});
  for (std::size_t k = 0; k < all.size(); ++k) {
    const std::size_t i = k % owners.size();
    if (all[k] == all[i]) continue;
    throw Mistake(fmt::format(
        "rank {} gives parameter {} of {} bytes to rank {}, and rank 0 gives it to rank {}: decide "
        "by what is the same on all ranks",
        k / owners.size(), i, bytes[i], all[k], all[i]));
  }
}

void check_model(const Answer& answer, Communicator& group, const Model& model) {
  const int ranks = group.size();
  const Sizes bytes = model.bytes();
  const std::vector<int> owners = answer.owners_of(parameters_of(model, group.rank()), group);
  if (owners.size() != bytes.size()) {
    throw Mistake(fmt::format("rank {} gives an owner to {} of {} parameters", group.rank(),
                              owners.size(), bytes.size()));
  }
  for (std::size_t i = 0; i < owners.size(); ++i) {
    if (0 <= owners[i] && owners[i] < ranks) continue;
    throw Mistake(
        fmt::format("parameter {} is given to rank {}, which does not exist", i, owners[i]));
  }
  check_agreement(owners, bytes, group);

  const std::int64_t most = most_owned(owners, bytes, ranks);
  if (most <= most_owned(greedy(largest_first(bytes), bytes, ranks), bytes, ranks)) return;
  const double all = std::accumulate(bytes.begin(), bytes.end(), 0.0);
  throw Mistake(fmt::format("one rank owns {:.3f} times the mean: {}",
                            static_cast<double>(most) * ranks / all, cause(owners, model, ranks)));
}

void check(const Answer& answer) {
  zero::exercise::on_all_ranks([&](Communicator& group) {
    for (const Model& model : kModels) check_model(answer, group, model);
  });
}

}  // namespace exercise_01a
