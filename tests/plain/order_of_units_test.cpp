// Ranks that run equal units in different orders at stage 3: an error on all of them that names the
// units, and never each other's parameters.
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/linear.h>

#include <iostream>

#include <tests/support/error_of.hpp>
#include <tests/support/ranks.hpp>
#include <tests/support/set_variable.hpp>

#include "plain_run.hpp"

namespace zero::testing {
namespace {

using Order = std::vector<std::size_t>;
const Order kInOrder = {0, 1, 2, 3}, kReversed = {3, 2, 1, 0}, kRotated = {1, 2, 3, 0};

// Blocks of one size, which run in any order.
struct Blocks : torch::nn::Module {
  Blocks() {
    for (int b = 0; b < 4; ++b) blocks->push_back(torch::nn::Linear(8, 8));
    register_module("blocks", blocks);
  }
  at::Tensor predict(at::Tensor x, const Order& order) {
    for (const std::size_t b : order) x = blocks[b]->as<torch::nn::Linear>()->forward(x).tanh();
    return x;
  }
  torch::nn::ModuleList blocks;
};

at::Tensor inputs(int rank, int step) {
  at::manual_seed(100 * step + rank);
  return at::randn({3, 8});
}

struct BlocksRun {
  BlocksRun(dist::Communicator& communicator, const EngineConfig& config)
      : rank(communicator.rank()),
        net(seeded()),
        engine(*net, communicator, optim::adamw({.learning_rate = 0.01}), config) {}
  static std::shared_ptr<Blocks> seeded() {
    at::manual_seed(7);
    return std::make_shared<Blocks>();
  }
  at::Tensor forward(int number, const Order& order) {
    return engine.forward(
        [&] { return net->predict(inputs(rank, number), order).square().mean(); });
  }
  void step(int number, const Order& order = kInOrder) {
    engine.backward(forward(number, order));
    EXPECT_TRUE(engine.step());
  }
  std::vector<at::Tensor> weights() { return whole_weights(engine.strategy()); }

  int rank;
  std::shared_ptr<Blocks> net;
  Engine engine;
};

// What even and odd ranks run in one pass.
struct Pass {
  const char* name;
  std::function<void(BlocksRun& run, bool is_odd)> body;
};

const std::vector<Pass> kPasses = {
    {"evaluate()",
     [](BlocksRun& run, bool is_odd) {
       run.engine.evaluate(
           [&] { return run.net->predict(inputs(run.rank, 9), is_odd ? kReversed : kInOrder); });
     }},
    {"forward() without a graph",
     [](BlocksRun& run, bool is_odd) {
       const at::NoGradGuard no_grad;
       run.forward(9, is_odd ? kReversed : kRotated);
     }},
    {"a step in two new orders",
     [](BlocksRun& run, bool is_odd) { run.step(9, is_odd ? kReversed : kRotated); }},
    {"a step in a new order on odd ranks",
     [](BlocksRun& run, bool is_odd) { run.step(9, is_odd ? kReversed : kInOrder); }},
    // Block 1 is gathered ahead on even ranks, and does not run.
    {"a step that skips a unit",
     [](BlocksRun& run, bool is_odd) {
       run.step(9, is_odd ? kReversed : Order{0, 2, 3});
     }},
    {"UnshardedParameters",
     [](BlocksRun& run, bool is_odd) {
       train::UnshardedParameters(run.engine.strategy(), is_odd ? 2 : 1);
     }},
};

std::vector<EngineConfig> configurations(int ranks) {
  if (ranks < 4) return {{.lookahead = 0}, {.lookahead = 2}};
  return {engine_config(R"({"group_size": 2, "secondary_shards": true})"), {.shard_size = 2}};
}

class OrderOfUnits : public ::testing::TestWithParam<std::tuple<int, std::string>> {};
using Group = std::tuple<int, std::string>;
INSTANTIATE_TEST_SUITE_P(Ranks, OrderOfUnits,
                         ::testing::Values(Group{2, "auto"}, Group{3, "auto"}, Group{3, "tcp"},
                                           Group{4, "auto"}),
                         [](const auto& info) {
                           return fmt::format("N{}_{}", std::get<0>(info.param),
                                              std::get<1>(info.param));
                         });

// Units have equal sizes: without their names in the fingerprints of gathers, ranks would take
// each other's parameters.
TEST_P(OrderOfUnits, IsAnErrorThatNamesBothWhereItDiffers) {
  const auto& [ranks, transport] = GetParam();
  const SetVariable variable("ZERO_TRANSPORT", transport);
  for (const EngineConfig& config : configurations(ranks)) {
    for (const Pass& pass : kPasses) {
      for (const int good_steps : {0, 2}) {  // when no order is known, and when one is
        if (good_steps == 0 && config.lookahead == 0) continue;
        SCOPED_TRACE(
            fmt::format("{} after {} steps, {}", pass.name, good_steps, base::text_of(config)));
        const auto exits =
            ranks_ended({.world_size = ranks}, [&](dist::Communicator& communicator) {
              BlocksRun run(communicator, config);
              for (int number = 0; number < good_steps; ++number) run.step(number);
              pass.body(run, communicator.rank() % 2 == 1);
            });
        expect_errors(exits, ::testing::AllOf(::testing::ContainsRegex("unit '(block|the root)"),
                                              ::testing::HasSubstr("units_named")));
      }
    }
  }
}

// In a known order the first unit brings all others ahead; then a rank may run these as it likes,
// and has the right values.
TEST(OrderOfUnitsGatheredAhead, MayDifferInAnEvaluation) {
  on_ranks(2, [](dist::Communicator& communicator) {
    BlocksRun run(communicator, {.lookahead = 8});
    run.step(0);
    const Order order = communicator.rank() == 1 ? Order{0, 3, 2, 1} : kInOrder;
    const at::Tensor x = inputs(0, 9);
    const at::Tensor prediction = run.engine.evaluate([&] { return run.net->predict(x, order); });
    const auto alone = BlocksRun::seeded();
    const std::vector<at::Tensor> weights = run.weights();
    for (std::size_t i = 0; at::Tensor mine : alone->parameters())
      mine.detach().copy_(weights[i++]);
    EXPECT_TRUE(at::equal(prediction, alone->predict(x, order)));
    run.step(1);
  });
}

// In training, too; but then ranks expect other orders, and the next step gathers other units
// ahead.
TEST(OrderOfUnitsGatheredAhead, IsAnErrorOfTheNextStepIfRanksLearntOthers) {
  const auto exits = ranks_ended({}, [](dist::Communicator& communicator) {
    BlocksRun run(communicator, {.lookahead = 8});
    run.step(0);
    run.step(1, communicator.rank() == 1 ? Order{0, 2, 1, 3} : kInOrder);
    std::cerr << "the second step is well\n";
    run.step(2);
  });
  expect_errors(exits, ::testing::AllOf(::testing::HasSubstr("the second step is well"),
                                        ::testing::HasSubstr("unit 'blocks.1'"),
                                        ::testing::HasSubstr("unit 'blocks.2'")));
}

// Nothing is gathered of units that are whole.
TEST_P(OrderOfUnits, OfWholeUnitsIsEachRanksOwnInAnEvaluation) {
  const auto& [ranks, transport] = GetParam();
  const SetVariable variable("ZERO_TRANSPORT", transport);
  on_ranks(ranks, [](dist::Communicator& communicator) {
    for (const int stage : {0, 1, 2, 3}) {
      const EngineConfig config{.stage = stage, .whole_below = 1000};
      BlocksRun run(communicator, config);
      const auto alone = BlocksRun::seeded();
      const Order& order = communicator.rank() == 1 ? kReversed : kInOrder;
      const at::Tensor x = inputs(0, 9);
      EXPECT_TRUE(at::equal(run.engine.evaluate([&] { return run.net->predict(x, order); }),
                            alone->predict(x, order)))
          << "stage " << stage;
    }
  });
}

}  // namespace
}  // namespace zero::testing
