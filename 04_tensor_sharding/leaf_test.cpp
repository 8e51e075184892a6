// Stage 3 with every layer gathered by itself.

#include <c10/core/GradMode.h>

#include <algorithm>

#include <tests/support/deferred.hpp>
#include <tests/support/ranks.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/nn/llama.hpp>
#include <zero/optim/adamw.hpp>
#include <zero/train/shard_layout.hpp>
#include <zero/train/trainer.hpp>

#include "tensor_zero3.hpp"

namespace zero {
namespace {

using dist::Operation;
using dist::Purpose;
using memory::Category;
using testing::on_ranks;

// Two layers of odd sizes: 1 + 2 * 9 layers with parameters and the final norm.
nn::LlamaConfig config(bool tied) {
  nn::LlamaConfig config = nn::preset("tiny");
  config.layers = 2;
  config.mlp += 3;
  config.vocabulary = 101;
  config.tied = tied;
  return config;
}

struct Trial {
  explicit Trial(dist::Communicator& communicator, bool tied = true)
      : model(testing::make_deferred<nn::Llama>(config(tied))), values(5) {
    strategy = std::make_unique<TensorZero3>(
        train::StrategyArguments{*model, communicator, optim::adamw(), &values, "leaf"});
    trainer = std::make_unique<train::Trainer>(*strategy);
    rest = parameters_now();
    memory::reset_peaks();
  }

  static std::int64_t parameters_now() { return memory::snapshot()[Category::kParameters]; }

  data::Batch batch(int step) const {
    const auto rank = strategy->communicator().rank();
    const at::Tensor inputs = (at::arange(14) * (3 + rank) + step).remainder(101).view({2, 7});
    return {.inputs = inputs, .targets = (inputs + 1).remainder(101), .loss_terms = 14};
  }
  // A step, of which peak() speaks afterwards; what this rank sent in it.
  dist::Traffic step(int number) {
    memory::reset_peaks();
    const dist::Traffic before = strategy->communicator().traffic();
    trainer->step({batch(number)});
    return strategy->communicator().traffic().since(before);
  }
  // What is gathered at this moment, and what was at the peak, bytes.
  std::int64_t gathered() const { return parameters_now() - rest; }
  std::int64_t peak() const { return memory::snapshot().peak_of(Category::kParameters) - rest; }
  std::int64_t shard(std::size_t unit) const {
    std::vector<std::int64_t> sizes;
    for (const std::size_t i : strategy->list().units[unit].parameters) {
      sizes.push_back(strategy->list().parameters[i].numel());
    }
    return 4 * train::ShardLayout(sizes, strategy->communicator().size()).shard();
  }
  std::int64_t whole(std::size_t unit) const {
    return shard(unit) * strategy->communicator().size();
  }
  std::int64_t largest_leaf() const {
    std::int64_t largest = 0;
    for (std::size_t u = 0; u < strategy->list().units.size(); ++u) {
      largest = std::max(largest, whole(u));
    }
    return largest;
  }

  std::shared_ptr<nn::Llama> model;
  nn::SeededValues values;
  std::unique_ptr<TensorZero3> strategy;
  std::unique_ptr<train::Trainer> trainer;
  std::int64_t rest = 0;  // bytes of parameters between steps
};

TEST(TensorZero3Leaf, UnitsAreTheLayersThatHoldParameters) {
  on_ranks(2, [](dist::Communicator& communicator) {
    for (const bool tied : {true, false}) {
      const Trial run(communicator, tied);
      const auto& units = run.strategy->list().units;
      const auto holding = std::count_if(units.begin(), units.end(),
                                         [](const auto& unit) { return !unit.parameters.empty(); });
      EXPECT_EQ(holding, tied ? 20 : 21);
      for (const nn::UnitInfo& unit : units) EXPECT_LE(unit.parameters.size(), 1U) << unit.name;
    }
  });
}

// The peak is over every moment of a step, so also over those that the next test looks at. Frozen
// layers have no gradient that says when they are done.
TEST(TensorZero3Leaf, NeverHoldsMoreThanOneLayer) {
  on_ranks(2, [](dist::Communicator& communicator) {
    for (const auto& [tied, frozen] : {std::pair{true, false}, {false, false}, {true, true}}) {
      Trial run(communicator, tied);
      for (const nn::Parameter& p : run.strategy->list().parameters) {
        p.tensor.requires_grad_(!frozen || p.name.ends_with("norm.weight"));
      }
      for (int step = 0; step < 2; ++step) {
        run.step(step);
        EXPECT_EQ(run.peak(), run.largest_leaf()) << "tied " << tied << ", frozen " << frozen;
        EXPECT_EQ(run.gathered(), 0) << "something stayed gathered";
      }
    }
  });
}

TEST(TensorZero3Leaf, HoldsNothingBetweenForwardAndBackwardAndOneLayerAtItsGradient) {
  on_ranks(3, [](dist::Communicator& communicator) {
    Trial run(communicator);
    TensorZero3& strategy = *run.strategy;
    std::size_t gradients = 0;
    strategy.passes().observe_gradients([&](std::size_t index, const at::Tensor&) {
      EXPECT_EQ(run.gathered(), run.whole(strategy.list().parameters[index].unit))
          << strategy.list().parameters[index].name;
      ++gradients;
    });
    const at::Tensor loss = strategy.forward(run.batch(0));
    EXPECT_EQ(run.gathered(), 0);
    strategy.backward(loss);
    EXPECT_EQ(run.gathered(), 0);
    strategy.finish_backward();
    EXPECT_EQ(gradients, strategy.list().size());
  });
}

TEST(TensorZero3Leaf, GathersEveryUseOnceForwardAndOnceBackward) {
  on_ranks(2, [](dist::Communicator& communicator) {
    for (const bool tied : {true, false}) {
      Trial run(communicator, tied);
      std::int64_t shards = 0;
      std::int64_t embedding = 0;
      for (std::size_t u = 0; u < run.strategy->list().units.size(); ++u) {
        shards += run.shard(u);
        if (run.strategy->list().units[u].name == "model.embed_tokens") embedding = run.shard(u);
      }
      ASSERT_GT(embedding, 0);
      for (int step = 0; step < 2; ++step) {
        const dist::Traffic sent = run.step(step);
        // 21 uses: an embedding that is the head as well is used twice.
        EXPECT_EQ(sent.at(Operation::kAllGather, Purpose::kParameter).calls, 42);
        EXPECT_EQ(sent.bytes(Purpose::kParameter), 2 * shards + (tied ? 2 * embedding : 0));
        EXPECT_EQ(sent.bytes(Purpose::kGradient), shards);
        EXPECT_EQ(sent.bytes(Purpose::kParameter) + sent.bytes(Purpose::kGradient),
                  run.strategy->costs().sent);
      }
    }
  });
}

TEST(TensorZero3Leaf, ACheckpointedPartIsWholeTogetherAndSendsTheSame) {
  on_ranks(2, [](dist::Communicator& communicator) {
    Trial run(communicator);
    run.model->checkpoint_activations(true);
    std::int64_t part = 0;
    for (const nn::UnitInfo& unit : run.strategy->list().units) {
      const auto u = static_cast<std::size_t>(&unit - run.strategy->list().units.data());
      if (unit.name.starts_with("model.layers.0.")) part += run.whole(u);
    }
    const dist::Traffic sent = run.step(0);
    EXPECT_EQ(run.peak(), std::max(part, run.largest_leaf()));
    EXPECT_EQ(run.gathered(), 0);
    EXPECT_EQ(sent.bytes(Purpose::kParameter) + sent.bytes(Purpose::kGradient),
              run.strategy->costs().sent);
  });
}

TEST(TensorZero3Leaf, EvaluationGathersEveryUseOnce) {
  on_ranks(2, [](dist::Communicator& communicator) {
    Trial run(communicator);
    const dist::Traffic before = communicator.traffic();
    EXPECT_GT(run.trainer->evaluate({run.batch(0)}), 0.0);
    EXPECT_EQ(communicator.traffic().since(before).calls(Purpose::kParameter), 21);
    EXPECT_EQ(run.peak(), run.largest_leaf());
    EXPECT_EQ(run.gathered(), 0);
  });
}

}  // namespace
}  // namespace zero
