// Compares the lists of all ranks, the longest work with that of the rule, and the weights that
// these owners make with those of one rank.

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <grading/check.hpp>
#include <zero/optim/muon.hpp>

#include "01g.hpp"

namespace exercise_01g {

using zero::dist::Communicator;
using zero::exercise::refuse;
using Sizes = std::vector<std::vector<std::int64_t>>;  // by parameter
using Costs = std::vector<double>;

// Layers of a language model with few key and value heads, with adapters of low rank; matrices with
// the same number of elements; fewer than ranks.
const std::vector<Sizes> kModels = {{{64},
                                     {64, 64},
                                     {16, 64},
                                     {16, 64},
                                     {64, 64},
                                     {64},
                                     {176, 64},
                                     {176, 64},
                                     {64, 176},
                                     {64},
                                     {64, 64},
                                     {4, 640},
                                     {640, 4},
                                     {64, 64},
                                     {64},
                                     {176, 64},
                                     {64, 176}},
                                    {{64, 64},
                                     {4, 1024},
                                     {4, 1024},
                                     {64, 64},
                                     {4, 1024},
                                     {1024, 4},
                                     {16, 256},
                                     {32, 128},
                                     {32, 128}},
                                    {{8, 96}, {24, 32}}};

enum class Count { kRight, kElements, kFlippedRows };

// As right, or by a mistake: elements, or rows for the short side.
Costs costs_of(const Sizes& sizes, Count count = Count::kRight) {
  Costs costs;
  for (const auto& size : sizes) {
    const auto rows = static_cast<double>(size[0]);
    const double columns = size.size() == 2 ? static_cast<double>(size[1]) : 1;
    const double shorter = count == Count::kFlippedRows ? rows : std::min(rows, columns);
    const double longer = rows * columns / shorter;
    const double products = 10 * shorter * shorter * (2 * longer + shorter);
    const double others = kAdamW * rows * columns;
    costs.push_back(size.size() < 2 || count == Count::kElements ? others : products);
  }
  return costs;
}

// The most expensive first, or in the order of the list, each to the rank with least so far.
std::vector<int> greedy(const Costs& costs, int ranks, bool sorted = true) {
  std::vector<std::size_t> order(costs.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto dearer = [&](std::size_t a, std::size_t b) { return sorted && costs[a] > costs[b]; };
  std::stable_sort(order.begin(), order.end(), dearer);
  Costs load(static_cast<std::size_t>(ranks));
  std::vector<int> owners(costs.size());
  for (const std::size_t i : order) {
    const auto least = std::min_element(load.begin(), load.end());
    *least += costs[i];
    owners[i] = static_cast<int>(least - load.begin());
  }
  return owners;
}

double longest(const std::vector<int>& owners, const Costs& costs, int ranks) {
  Costs load(static_cast<std::size_t>(ranks));
  for (std::size_t i = 0; i < costs.size(); ++i)
    load[static_cast<std::size_t>(owners[i])] += costs[i];
  return *std::max_element(load.begin(), load.end());
}

std::string cause(const std::vector<int>& owners, const Sizes& sizes, int ranks) {
  if (owners == greedy(costs_of(sizes, Count::kElements), ranks)) {
    return "owners have as many elements, and a matrix costs more the squarer it is";
  }
  if (owners == greedy(costs_of(sizes, Count::kFlippedRows), ranks)) {
    return "x x' of a tall matrix is taken for rows by rows: its short side comes first";
  }
  if (owners == greedy(costs_of(sizes), ranks, /*sorted=*/false)) {
    return "parameters are given out in the order of the list, not the most expensive first";
  }
  return "the most expensive first, each to the rank with the cheapest work so far, comes closer";
}

// Called by all ranks.
void check_agreement(const std::vector<int>& owners, Communicator& group) {
  const auto all = all_gather_scalars(group, {owners.begin(), owners.end()});
  for (std::size_t k = 0; k < all.size(); ++k) {
    const std::size_t i = k % owners.size();
    if (all[k] == all[i]) continue;
    refuse("rank {} gives parameter {} to rank {}, and rank 0 gives it to rank {}",
           k / owners.size(), i, all[k], all[i]);
  }
}

at::Tensor normal(const std::vector<std::int64_t>& size, std::uint64_t seed) {
  return at::randn(size, at::detail::createCPUGenerator(seed));
}

// In one block, each rank with an order of its own, so that addresses do not agree.
std::vector<at::Tensor> parameters_of(const Sizes& sizes, int rank) {
  std::vector<at::Tensor> parameters(sizes.size());
  const at::Tensor block = at::empty({1 << 20});
  std::int64_t begin = 0;
  for (std::size_t k = 0; k < sizes.size(); ++k) {
    const std::size_t i = rank % 2 == 0 ? k : sizes.size() - 1 - k;
    const at::Tensor values = normal(sizes[i], i);
    parameters[i] = block.narrow(0, begin, values.numel()).view(values.sizes()).copy_(values);
    begin += values.numel();
  }
  return parameters;
}

// Each rank updates what it owns, and sends it. A group of none: one rank owns all.
void train(const std::vector<at::Tensor>& parameters, const std::vector<int>& owners,
           Communicator* group) {
  torch::nn::Module module;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    module.register_parameter(std::to_string(i), parameters[i], /*requires_grad=*/false);
  }
  const auto optimizer = zero::optim::muon(module)(parameters);
  for (std::uint64_t step = 0; step < 3; ++step) {
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const bool mine = group == nullptr || owners[i] == group->rank();
      parameters[i].mutable_grad() =
          mine ? normal(parameters[i].sizes().vec(), 100 * step + i) : at::Tensor();
    }
    optimizer->step();
    for (std::size_t i = 0; group != nullptr && i < parameters.size(); ++i) {
      group->broadcast(parameters[i], owners[i], zero::dist::Purpose::kParameter).wait();
    }
  }
}

void expect_equal(const std::vector<at::Tensor>& parameters, const std::vector<at::Tensor>& alone,
                  const char* otherwise) {
  for (std::size_t i = 0; i < alone.size(); ++i) {
    if (at::equal(parameters[i], alone[i])) continue;
    refuse("parameter {} [{}] {}", i, fmt::join(alone[i].sizes(), ", "), otherwise);
  }
}

void check_model(const Answer& answer, Communicator& group, const Sizes& sizes) {
  const int ranks = group.size();
  const std::vector<at::Tensor> parameters = parameters_of(sizes, group.rank());
  const std::vector<at::Tensor> alone = parameters_of(sizes, group.rank());
  const std::vector<int> owners = answer.owners_of(parameters, ranks);
  if (owners.size() != sizes.size()) {
    refuse("rank {} gives an owner to {} of {} parameters", group.rank(), owners.size(),
           sizes.size());
  }
  for (std::size_t i = 0; i < owners.size(); ++i) {
    if (0 <= owners[i] && owners[i] < ranks) continue;
    refuse("parameter {} is given to rank {}, which does not exist", i, owners[i]);
  }
  check_agreement(owners, group);

  const Costs costs = costs_of(sizes);
  const double most = longest(owners, costs, ranks);
  if (most > longest(greedy(costs, ranks), costs, ranks)) {
    refuse("one rank computes {:.3f} times the mean: {}",
           most * ranks / std::accumulate(costs.begin(), costs.end(), 0.0),
           cause(owners, sizes, ranks));
  }
  expect_equal(parameters, alone, "is not what it was before the call");
  train(parameters, owners, &group);
  train(alone, {}, nullptr);
  expect_equal(parameters, alone, "has other bits after three updates than on one rank");
}

void check(const Answer& answer) {
  zero::exercise::on_all_ranks([&](Communicator& group) {
    for (const Sizes& sizes : kModels) check_model(answer, group, sizes);
  });
}

}  // namespace exercise_01g
