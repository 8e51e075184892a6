// Ranks whose data ends earlier than that of others: they pass a batch of no terms, as
// docs/engine.md shows. The measure is the plain module in one process, with the batches that there
// are.
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>

#include <tests/support/ranks.hpp>
#include <zero/distributed/agreement.hpp>

#include "plain_run.hpp"

namespace zero::testing {
namespace {

ZERO_TESTS_ON_RANKS(UnevenData, 1, 2, 3);

constexpr std::int64_t kUnevenTerms = 4;

// Rank r has r + 1 batches.
std::vector<at::Tensor> uneven_batches(int rank) {
  std::vector<at::Tensor> batches;
  for (int number = 0; number <= rank; ++number) {
    at::manual_seed(100 * number + rank);
    batches.push_back(at::randn({kUnevenTerms, 6}));
  }
  return batches;
}

struct UnevenNet : torch::nn::Module {
  at::Tensor loss(const at::Tensor& x) {
    at::Tensor y = x;
    for (const auto& layer : *layers) y = layer->as<torch::nn::Linear>()->forward(y).tanh();
    return y.square().mean();
  }
  static std::shared_ptr<UnevenNet> seeded() {
    at::manual_seed(7);
    return std::make_shared<UnevenNet>();
  }
  torch::nn::ModuleList layers = register_module(
      "layers", torch::nn::ModuleList(torch::nn::Linear(6, 8), torch::nn::Linear(8, 5)));
};

std::vector<at::Tensor> uneven_alone(int ranks) {
  const auto net = UnevenNet::seeded();
  const auto optimizer = torch_adamw(net->parameters());
  for (int step = 0; step < ranks; ++step) {  // of which ranks `step` and up have a batch
    std::vector<at::Tensor> sums;
    for (int rank = step; rank < ranks; ++rank) {
      net->zero_grad();
      // What the batches weigh in the mean over all terms, and the mean over ranks undone.
      const double weight = static_cast<double>(ranks) / (ranks - step);
      const at::Tensor loss = net->loss(uneven_batches(rank)[static_cast<std::size_t>(step)]);
      (weight == 1 ? loss : loss * weight).backward();
      for (std::size_t i = 0; i < net->parameters().size(); ++i) {
        const at::Tensor mine = net->parameters()[i].grad().clone();
        rank == step ? sums.push_back(mine) : static_cast<void>(sums[i] = sums[i] + mine);
      }
    }
    for (std::size_t i = 0; i < sums.size(); ++i) {
      net->parameters()[i].mutable_grad() = sums[i] / ranks;
    }
    optimizer->step();
  }
  return net->parameters();
}

TEST_P(UnevenData, EndsWithBatchesOfNoTerms) {
  on_ranks(GetParam(), [](dist::Communicator& communicator) {
    const std::vector<at::Tensor> expected = uneven_alone(communicator.size());
    for (const int stage : {0, 1, 2, 3}) {
      const auto net = UnevenNet::seeded();
      Engine engine(*net, communicator, wrapped_adamw, at_stage(stage));
      const std::vector<at::Tensor> mine = uneven_batches(communicator.rank());
      const auto have = dist::all_gather_scalars(communicator, {double(mine.size())});
      const auto steps = static_cast<std::size_t>(*std::ranges::max_element(have));
      for (std::size_t s = 0; s < steps; ++s) {
        const at::Tensor& batch = mine[std::min(s, mine.size() - 1)];
        const std::int64_t terms = s < mine.size() ? kUnevenTerms : 0;
        engine.backward(engine.forward([&] { return net->loss(batch); }, terms));
        EXPECT_TRUE(engine.step());
      }
      EXPECT_TRUE(same_bits(whole_weights(engine.strategy()), expected)) << "stage " << stage;
    }
  });
}

}  // namespace
}  // namespace zero::testing
