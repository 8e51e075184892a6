#include <c10/core/GradMode.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>

#include <tests/support/ranks.hpp>
#include <tests/support/toy.hpp>
#include <zero/base/error.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/memory/storage.hpp>
#include <zero/nn/llama.hpp>
#include <zero/optim/adamw.hpp>
#include <zero/train/ownership.hpp>
#include <zero/train/trainer.hpp>

#include "tensor_zero1.hpp"
#include "tensor_zero2.hpp"
#include "tensor_zero3.hpp"

namespace zero {
namespace {

using memory::Category;
using testing::on_ranks;
using testing::Toy;

// Large enough for bytes to say something: four linear layers, 600 KiB.
struct Medium : Toy {
  Medium() {
    const nn::DeferredStorage deferred;
    nn::MlpConfig config;
    config.inputs = 63;
    config.hidden = {257, 255, 251};
    config.outputs = 9;
    model = std::make_shared<nn::Mlp>(config);
  }
};

train::StrategyArguments arguments(nn::Model& model, nn::ParameterSource& values,
                                   dist::Communicator& communicator,
                                   const std::string& variant = "flat") {
  return {model, communicator, optim::adamw(), &values, variant};
}

std::int64_t bytes_of_unit(const train::Strategy& strategy, std::size_t unit) {
  std::int64_t sum = 0;
  for (const std::size_t i : strategy.list().units[unit].parameters) {
    sum += strategy.list().parameters[i].bytes();
  }
  return sum;
}

std::int64_t largest_unit(const train::Strategy& strategy) {
  std::int64_t largest = 0;
  for (std::size_t u = 0; u < strategy.list().units.size(); ++u) {
    largest = std::max(largest, bytes_of_unit(strategy, u));
  }
  return largest;
}

std::int64_t parameters_now() { return memory::snapshot()[Category::kParameters]; }

TEST(TensorZero3, NeverHoldsTheModelNotEvenAtTheStart) {
  on_ranks(3, [](dist::Communicator& communicator) {
    memory::reset_peaks();
    const std::int64_t before = parameters_now();
    Medium toy;
    TensorZero3 strategy(arguments(*toy.model, toy.values, communicator));
    EXPECT_EQ(parameters_now() - before, strategy.predicted_bytes().parameters);
    const std::int64_t peak = memory::snapshot().peak_of(Category::kParameters) - before;
    // The shards, and one unit while it is cut.
    EXPECT_LE(peak, strategy.predicted_bytes().parameters + largest_unit(strategy) + 4096);
    EXPECT_LT(peak, strategy.list().bytes());
  });
}

TEST(TensorZero3, HoldsTheRunningUnitAndTheRootWithinAStep) {
  on_ranks(2, [](dist::Communicator& communicator) {
    Medium toy;
    TensorZero3 strategy(arguments(*toy.model, toy.values, communicator));
    train::Trainer trainer(strategy);
    trainer.step({toy.batch(communicator.rank(), 0)});
    memory::reset_peaks();
    const std::int64_t rest = parameters_now();
    trainer.step({toy.batch(communicator.rank(), 1)});
    EXPECT_EQ(parameters_now(), rest) << "something stayed gathered";
    const std::int64_t peak = memory::snapshot().peak_of(Category::kParameters) - rest;
    EXPECT_GE(peak, largest_unit(strategy)) << "nothing was gathered";
    EXPECT_LE(peak, bytes_of_unit(strategy, 0) + largest_unit(strategy) + 4096);
  });
}

TEST(TensorZero3, WholeVariantHoldsTheModelFromForwardToBackward) {
  on_ranks(2, [](dist::Communicator& communicator) {
    Medium toy;
    TensorZero3 strategy(arguments(*toy.model, toy.values, communicator, "whole"));
    const std::int64_t rest = parameters_now();
    const at::Tensor loss = strategy.forward(toy.batch(communicator.rank(), 0));
    EXPECT_GE(parameters_now() - rest, strategy.list().bytes());
    strategy.backward(loss);
    strategy.finish_backward();
    EXPECT_EQ(parameters_now(), rest);
  });
}

TEST(TensorZero3, EvaluationLeavesNothingGathered) {
  on_ranks(2, [](dist::Communicator& communicator) {
    Toy toy;
    TensorZero3 strategy(arguments(*toy.model, toy.values, communicator));
    const std::int64_t rest = parameters_now();
    train::Trainer trainer(strategy);
    EXPECT_GT(trainer.evaluate({toy.batch(communicator.rank(), 0)}), 0.0);
    EXPECT_EQ(parameters_now(), rest);
  });
}

TEST(TensorZero3, UnshardedParametersAreWholeAndTheFirstValues) {
  on_ranks(3, [](dist::Communicator& communicator) {
    Toy toy;
    TensorZero3 strategy(arguments(*toy.model, toy.values, communicator));
    for (std::size_t u = 0; u < strategy.list().units.size(); ++u) {
      const train::UnshardedParameters whole(strategy, u);
      for (const std::size_t i : strategy.list().units[u].parameters) {
        const nn::Parameter& p = strategy.list().parameters[i];
        at::Tensor expected = at::empty(p.tensor.sizes());
        Toy().values.fill(p, expected);
        EXPECT_TRUE(at::equal(p.tensor, expected)) << p.name;
      }
    }
  });
}

TEST(TensorZero2, GradientsAreNeverAllThere) {
  on_ranks(2, [](dist::Communicator& communicator) {
    Medium toy;
    TensorZero2 strategy(arguments(*toy.model, toy.values, communicator));
    train::Trainer trainer(strategy);
    trainer.step({toy.batch(communicator.rank(), 0)});
    trainer.zero_grad();
    memory::reset_peaks();
    trainer.step({toy.batch(communicator.rank(), 1)});
    const auto now = memory::snapshot();
    EXPECT_EQ(now[Category::kGradients], strategy.predicted_bytes().gradients);
    // Two units: one whose buffer is filled while that before it is on its way.
    EXPECT_LT(now.peak_of(Category::kGradients),
              strategy.predicted_bytes().gradients + 2 * largest_unit(strategy));
    EXPECT_LT(now.peak_of(Category::kGradients), strategy.list().bytes());
  });
}

// Sizes that four ranks divide without padding: weights and biases are multiples of 256.
struct Even : Toy {
  Even() {
    const nn::DeferredStorage deferred;
    nn::MlpConfig config;
    config.inputs = 64;
    config.hidden = {256, 256};
    config.outputs = 256;
    model = std::make_shared<nn::Mlp>(config);
  }
};

// Bytes of this rank, as allocated after a step and as sent in it.
struct Toll {
  std::int64_t parameters, gradients, moments, sent_gradients, sent_parameters;
};

template <class Stage>
Toll toll_of(dist::Communicator& communicator, Toy&& toy) {
  const memory::Snapshot before = memory::snapshot();
  Stage strategy(arguments(*toy.model, toy.values, communicator));
  train::Trainer trainer(strategy);
  const dist::Traffic first = communicator.traffic();
  trainer.step({toy.batch(communicator.rank(), 0)});
  const dist::Traffic sent = communicator.traffic().since(first);
  const memory::Snapshot now = memory::snapshot();
  const auto held = [&](Category category) { return now[category] - before[category]; };
  return {held(Category::kParameters), held(Category::kGradients), held(Category::kOptimizer),
          sent.bytes(dist::Purpose::kGradient), sent.bytes(dist::Purpose::kParameter)};
}

// What whole-parameter ownership cannot do.
template <class Stage>
void expect_all_ranks_alike(dist::Communicator& communicator) {
  const Toll toll = toll_of<Stage>(communicator, Even());
  const std::vector<std::int64_t> all = {toll.parameters, toll.gradients, toll.moments,
                                         toll.sent_gradients, toll.sent_parameters};
  for (const std::int64_t bytes : all) EXPECT_GT(bytes, 0);
  communicator.verify_same_on_all_ranks("what a rank holds and sends",
                                        fmt::format("{}", fmt::join(all, " ")));
}

TEST(TensorSharding, EveryRankHoldsAndSendsTheSame) {
  on_ranks(4, [](dist::Communicator& communicator) {
    expect_all_ranks_alike<TensorZero1>(communicator);
    expect_all_ranks_alike<TensorZero2>(communicator);
    expect_all_ranks_alike<TensorZero3>(communicator);
  });
}

// The buffers are as long on every rank, and so is what travels. The last ranks' shards hold more
// padding, which has no moments; a shard that is nothing else has no gradient either.
template <class Stage>
void expect_alike_but_for_padding(dist::Communicator& communicator) {
  const Toll toll = toll_of<Stage>(communicator, Toy());
  communicator.verify_same_on_all_ranks(
      "what a rank holds whole and sends",
      fmt::format("{} {} {}", toll.parameters, toll.sent_gradients, toll.sent_parameters));
  // The reduce-scatter has sent the shards of all other ranks.
  const std::int64_t shard = toll.sent_gradients / (communicator.size() - 1);
  EXPECT_LE(toll.moments, 2 * shard);
  EXPECT_LE(toll.gradients, toll.parameters);
  std::int64_t moments = 0;
  for (const std::string& text : communicator.exchange(std::to_string(toll.moments))) {
    moments += std::stoll(text);
  }
  EXPECT_EQ(moments, 2 * nn::list_parameters(*Toy().model).bytes());
}

TEST(TensorSharding, HoweverOddTheModelRanksDifferInPaddingOnly) {
  on_ranks(4, [](dist::Communicator& communicator) {
    expect_alike_but_for_padding<TensorZero1>(communicator);
    expect_alike_but_for_padding<TensorZero2>(communicator);
    expect_alike_but_for_padding<TensorZero3>(communicator);
  });
}

TEST(TensorSharding, AParameterUnfrozenTooLateIsRefusedByName) {
  on_ranks(2, [](dist::Communicator& communicator) {
    Toy toy;
    at::Tensor first = nn::list_parameters(*toy.model).parameters[0].tensor;
    first.requires_grad_(false);
    TensorZero2 strategy(arguments(*toy.model, toy.values, communicator));
    first.requires_grad_(true);
    const at::Tensor loss = strategy.forward(toy.batch(communicator.rank(), 0));
    try {
      strategy.backward(loss);
      ADD_FAILURE() << "a gradient without a place was taken";
    } catch (const std::exception& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr("was frozen when it was sharded"));
      EXPECT_THAT(error.what(), ::testing::HasSubstr(strategy.list().parameters[0].name));
    }
  });
}

// A user's model has its values already.
TEST(TensorSharding, ValuesThatAModelWasBuiltWithAreKept) {
  on_ranks(2, [](dist::Communicator& communicator) {
    nn::Mlp model(nn::MlpConfig{});
    nn::SeededValues values(11);
    nn::initialize_parameters(model, values);
    const at::Tensor weight = nn::list_parameters(model).parameters[0].tensor;
    const at::Tensor expected = weight.detach().clone();
    TensorZero3 strategy({model, communicator, optim::adamw(), nullptr, "flat"});
    const train::UnshardedParameters whole(strategy, strategy.list().parameters[0].unit);
    EXPECT_TRUE(at::equal(weight, expected));
  });
}

// The embedding of the ladder's model is more than a sixteenth of it.
TEST(TensorSharding, BalancesTheModelThatOwnersCannot) {
  const nn::DeferredStorage deferred;
  nn::Llama model(nn::preset("smollm2-360m"));
  const nn::ParameterList list = nn::list_parameters(model);
  std::int64_t shard = 0;
  for (const nn::UnitInfo& unit : list.units) {
    std::vector<std::int64_t> sizes;
    for (const std::size_t i : unit.parameters) sizes.push_back(list.parameters[i].numel());
    shard += train::ShardLayout(sizes, 16).shard();
  }
  EXPECT_LT(static_cast<double>(shard) * 16 / list.numel(), 1.0001);
}

}  // namespace
}  // namespace zero
