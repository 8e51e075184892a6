// Ranks that run equal units in different orders at stage 3, where they would gather each other's
// parameters: an error on all of them, after which they train on as if the pass had not been.
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>

#include <tests/support/error_of.hpp>
#include <tests/support/ranks.hpp>
#include <tests/support/set_variable.hpp>

#include "plain_run.hpp"

namespace zero::testing {
namespace {

using Order = std::vector<std::size_t>;
const Order kInOrder = {0, 1, 2, 3}, kReversed = {3, 2, 1, 0}, kRotated = {1, 2, 3, 0};

// Blocks of one size, which run in any order. As a module of torch::nn:
struct PlainBlocks : torch::nn::Module {
  PlainBlocks() {
    for (int b = 0; b < 4; ++b) blocks->push_back(torch::nn::Linear(8, 8));
    register_module("blocks", blocks);
  }
  at::Tensor predict(at::Tensor x, const Order& order) {
    for (const std::size_t b : order) x = blocks[b]->as<torch::nn::Linear>()->forward(x).tanh();
    return x;
  }
  torch::nn::ModuleList blocks;
};

// And as units that call their hooks themselves.
struct UnitBlocks : nn::Unit {
  struct Block : nn::Unit {
    Block() : linear(register_module("linear", torch::nn::Linear(8, 8))) {}
    at::Tensor forward(const at::Tensor& x) {
      return run([&] { return linear->forward(x).tanh(); });
    }
    torch::nn::Linear linear;
  };
  UnitBlocks() {
    for (int b = 0; b < 4; ++b) {
      blocks.push_back(register_module(fmt::format("block{}", b), std::make_shared<Block>()));
    }
  }
  at::Tensor predict(at::Tensor x, const Order& order) {
    return run([&] {
      for (const std::size_t b : order) x = blocks[b]->forward(x);
      return x;
    });
  }
  std::vector<std::shared_ptr<Block>> blocks;
};

at::Tensor inputs(int rank, int step) {
  at::manual_seed(100 * step + rank);
  return at::randn({3, 8});
}

template <class Net>
at::Tensor forward(Engine& engine, Net& net, const at::Tensor& x, const Order& order) {
  return engine.forward([&] { return net.predict(x, order).square().mean(); });
}

template <class Net>
struct BlocksRun {
  BlocksRun(dist::Communicator& communicator, const EngineConfig& config)
      : rank(communicator.rank()),
        net(seeded()),
        engine(*net, communicator, optim::adamw({.learning_rate = 0.01}), config) {}
  static std::shared_ptr<Net> seeded() {
    at::manual_seed(7);
    return std::make_shared<Net>();
  }
  void step(int number, const Order& order = kInOrder) {
    engine.backward(forward(engine, *net, inputs(rank, number), order));
    EXPECT_TRUE(engine.step());
  }
  void evaluate(const Order& order) {
    engine.evaluate([&] { return net->predict(inputs(rank, 9), order); });
  }
  std::vector<at::Tensor> weights() { return whole_weights(engine.strategy()); }

  int rank;
  std::shared_ptr<Net> net;
  Engine engine;
};

// What is done between two good steps must leave the weights of four good steps, each with the
// sentence about `pass`.
template <class Net>
using Between = std::function<void(BlocksRun<Net>&, bool is_odd)>;

template <class Net>
void expect_no_trace(dist::Communicator& communicator, const EngineConfig& config,
                     const std::string& pass, const Between<Net>& between) {
  std::vector<std::vector<at::Tensor>> ends;
  for (const bool disturbs : {false, true}) {
    BlocksRun<Net> run(communicator, config);
    for (int number = 0; number < 5; ++number) {
      if (disturbs && number != 2) {  // when no order is known, when one is, and after the error
        expect_error(
            [&] { between(run, communicator.rank() % 2 == 1); },
            {"ranks disagree about the order of units in " + pass, "block", "units_named"});
        run.engine.give_up_step();
      }
      run.step(number);
    }
    ends.push_back(run.weights());
  }
  EXPECT_TRUE(same_bits(ends[0], ends[1])) << pass << ", " << base::text_of(config);
}

std::vector<EngineConfig> configurations(const dist::Communicator& communicator) {
  std::vector<EngineConfig> all;
  const bool is_slow = communicator.size() > 2 && communicator.transport().find("TCP") == 0;
  for (const std::int64_t lookahead :
       is_slow ? std::vector<std::int64_t>{1} : std::vector<std::int64_t>{0, 1, 2}) {
    all.push_back({.lookahead = lookahead});
  }
  if (communicator.size() == 4) {
    all.push_back(engine_config(R"({"group_size": 2, "secondary_shards": true})"));
    all.push_back({.shard_size = 2});
  }
  return all;
}

class OrderOfUnits : public ::testing::TestWithParam<std::tuple<int, std::string>> {
 protected:
  void on_all(const std::function<void(dist::Communicator&, const EngineConfig&)>& body) {
    const auto& [ranks, transport] = GetParam();
    const SetVariable variable("ZERO_TRANSPORT", transport);
    on_ranks(ranks, [&](dist::Communicator& communicator) {
      for (const EngineConfig& config : configurations(communicator)) body(communicator, config);
    });
  }
};
INSTANTIATE_TEST_SUITE_P(Ranks, OrderOfUnits,
                         ::testing::Combine(::testing::Values(2, 3, 4),
                                            ::testing::Values("auto", "tcp")),
                         [](const auto& info) {
                           return fmt::format("N{}_{}", std::get<0>(info.param),
                                              std::get<1>(info.param));
                         });

template <class Net>
void evaluate_otherwise(BlocksRun<Net>& run, bool is_odd) {
  run.evaluate(is_odd ? kReversed : kInOrder);
}

TEST_P(OrderOfUnits, OfAnEvaluationIsComparedBeforeAValueLeavesIt) {
  const std::string pass = "a forward without a graph";
  on_all([&](dist::Communicator& communicator, const EngineConfig& config) {
    expect_no_trace<PlainBlocks>(communicator, config, pass, &evaluate_otherwise<PlainBlocks>);
    expect_no_trace<UnitBlocks>(communicator, config, pass, &evaluate_otherwise<UnitBlocks>);
    expect_no_trace<PlainBlocks>(communicator, config, pass, [](auto& run, bool is_odd) {
      const at::NoGradGuard no_grad;
      forward(run.engine, *run.net, inputs(0, 9), is_odd ? kReversed : kRotated);
    });
  });
}

TEST_P(OrderOfUnits, OfATrainingPassIsComparedBeforeBackward) {
  on_all([&](dist::Communicator& communicator, const EngineConfig& config) {
    expect_no_trace<PlainBlocks>(communicator, config, "forward", [](auto& run, bool is_odd) {
      run.step(9, is_odd ? kReversed : kRotated);
    });
    // Here even ranks run what they know.
    expect_no_trace<PlainBlocks>(communicator, config, "forward", [](auto& run, bool is_odd) {
      run.step(9, is_odd ? kReversed : kInOrder);
    });
    expect_no_trace<UnitBlocks>(communicator, config, "forward", [](auto& run, bool is_odd) {
      run.step(9, is_odd ? kReversed : kInOrder);
    });
  });
}

// A forward that nobody uses has no backward that would compare its order: the next pass does.
TEST_P(OrderOfUnits, OfAForwardThatIsNotUsedIsComparedBeforeTheNext) {
  on_all([](dist::Communicator& communicator, const EngineConfig& config) {
    for (const bool evaluates : {false, true}) {
      expect_no_trace<PlainBlocks>(communicator, config, "forward", [&](auto& run, bool is_odd) {
        forward(run.engine, *run.net, inputs(0, 9), is_odd ? kReversed : kInOrder);
        run.engine.give_up_step();
        evaluates ? run.evaluate(kInOrder) : run.step(9);
      });
    }
  });
}

// Block 1 is gathered ahead on even ranks, with what odd ranks sent of block 2, and does not run.
TEST(OrderOfUnitsGatheredAhead, LeavesNoTrace) {
  on_ranks(2, [](dist::Communicator& communicator) {
    std::vector<std::vector<at::Tensor>> ends;
    for (const bool disturbs : {false, true}) {
      BlocksRun<PlainBlocks> run(communicator, {});
      run.step(0);
      if (disturbs) {
        const Order& order = communicator.rank() == 1 ? kReversed : Order{0, 2, 3};
        expect_error([&] { run.step(9, order); }, {"rank 0 has blocks.0, rank 1 has blocks.3"});
        run.engine.give_up_step();
      }
      run.step(1);
      ends.push_back(run.weights());
    }
    EXPECT_TRUE(same_bits(ends[0], ends[1]));
  });
}

// Nothing is gathered of units that are whole.
TEST_P(OrderOfUnits, OfWholeUnitsIsEachRanksOwnInAnEvaluation) {
  on_all([](dist::Communicator& communicator, EngineConfig config) {
    if (config.shard_size != 0 || config.secondary_shards) return;
    for (const int stage : {0, 1, 2, 3}) {
      config.stage = stage;
      config.whole_below = 1000;
      BlocksRun<PlainBlocks> run(communicator, config);
      const auto alone = BlocksRun<PlainBlocks>::seeded();
      const Order& order = communicator.rank() == 1 ? kReversed : kInOrder;
      const at::Tensor x = inputs(0, 9);
      EXPECT_TRUE(at::equal(run.engine.evaluate([&] { return run.net->predict(x, order); }),
                            alone->predict(x, order)))
          << "stage " << stage;
    }
  });
}

// Passes that nobody compares: the gather itself says that another rank gathers another unit.
TEST_P(OrderOfUnits, OfOtherPassesAndScopesIsAnErrorAtOnce) {
  const auto& [ranks, transport] = GetParam();
  const SetVariable variable("ZERO_TRANSPORT", transport);
  const std::vector<std::function<void(BlocksRun<UnitBlocks>&)>> passes = {
      [](auto& run) { train::UnshardedParameters(run.engine.strategy(), 1 + run.rank % 2); },
      [](auto& run) {
        const at::Tensor x = inputs(run.rank, 1).requires_grad_();
        const at::Tensor y = run.net->blocks[run.rank % 2]->forward(x).sum();
        torch::autograd::grad({y}, {x});
      }};
  for (const auto& pass : passes) {
    const auto exits = ranks_ended({.world_size = ranks}, [&](dist::Communicator& communicator) {
      BlocksRun<UnitBlocks> run(communicator, {});
      pass(run);
    });
    expect_errors(exits, ::testing::AllOf(::testing::HasSubstr("unit 'block0'"),
                                          ::testing::HasSubstr("unit 'block1'")));
  }
}

}  // namespace
}  // namespace zero::testing
