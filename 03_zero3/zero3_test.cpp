#include <c10/core/GradMode.h>

#include <tests/support/ranks.hpp>
#include <tests/support/toy.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/memory/storage.hpp>
#include <zero/nn/llama.hpp>
#include <zero/optim/adamw.hpp>
#include <zero/train/trainer.hpp>

#include "zero3_sharding.hpp"

namespace zero {
namespace {

using memory::Category;
using testing::on_ranks;
using testing::Toy;

train::StrategyArguments arguments(nn::Model& model, nn::ParameterSource& values,
                                   dist::Communicator& communicator,
                                   const std::string& variant = "unit") {
  return {model, communicator, optim::adamw(), &values, variant};
}

std::int64_t owned_bytes(const train::Strategy& strategy) {
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < strategy.list().size(); ++i) {
    if (strategy.owns(i)) sum += strategy.list().parameters[i].bytes();
  }
  return sum;
}

// Which parameters have bytes on this rank: at rest, exactly the owned ones, and those cannot be
// read through the model either.
void expect_only_owned(const train::Strategy& strategy, const std::string& when) {
  for (std::size_t i = 0; i < strategy.list().size(); ++i) {
    const nn::Parameter& p = strategy.list().parameters[i];
    EXPECT_FALSE(memory::has_storage(p.tensor)) << when << ": " << p.name;
    const at::Tensor mine = strategy.local_shard(i).tensor;
    EXPECT_EQ(mine.defined() && memory::has_storage(mine), strategy.owns(i))
        << when << ": " << p.name;
  }
}

TEST(Zero3, HoldsItsOwnParametersOnlyAtEveryPointOfRest) {
  for (const int ranks : {2, 3, 4}) {
    on_ranks(ranks, [](dist::Communicator& communicator) {
      for (const char* variant : {"unit", "whole"}) {
        const memory::Snapshot before = memory::snapshot();
        Toy toy;
        Zero3Sharding zero3(arguments(*toy.model, toy.values, communicator, variant));
        expect_only_owned(zero3, "after construction");
        zero3.backward(zero3.forward(toy.batch(communicator.rank(), 0)));
        zero3.finish_backward();
        expect_only_owned(zero3, "after backward");
        zero3.optimizer_step();
        zero3.sync_parameters();
        const memory::Snapshot held = memory::snapshot();
        const std::int64_t owned = owned_bytes(zero3);
        EXPECT_EQ(held[Category::kParameters] - before[Category::kParameters], owned);
        EXPECT_EQ(held[Category::kGradients] - before[Category::kGradients], owned);
        EXPECT_EQ(held[Category::kOptimizer] - before[Category::kOptimizer], 2 * owned);
        EXPECT_LT(owned, zero3.list().bytes());
      }
    });
  }
}

// Built parameter by parameter: what a rank holds at the start is bounded by what it owns and the
// largest single parameter, also on rank 0, where all values come from.
TEST(Zero3, NoRankEverHoldsTheWholeModelAtTheStart) {
  on_ranks(3, [](dist::Communicator& communicator) {
    memory::reset_peaks();
    const std::int64_t before = memory::snapshot()[Category::kParameters];
    Toy toy;
    Zero3Sharding zero3(arguments(*toy.model, toy.values, communicator));
    std::int64_t largest = 0;
    for (const nn::Parameter& p : zero3.list().parameters) largest = std::max(largest, p.bytes());
    EXPECT_LE(memory::snapshot().peak_of(Category::kParameters) - before,
              owned_bytes(zero3) + largest);
  });
}

// Within a step: owned, plus the root from forward to backward, plus one inner unit.
TEST(Zero3, PeakOfParametersIsOwnedPlusRootPlusOneUnit) {
  on_ranks(2, [](dist::Communicator& communicator) {
    nn::LlamaConfig config = nn::preset("tiny");
    config.layers = 6;
    nn::SeededValues values(1);
    data::Batch batch;
    batch.inputs = at::arange(16).view({1, 16}) + communicator.rank();
    batch.targets = batch.inputs + 1;
    batch.loss_terms = 16;
    const std::int64_t before = memory::snapshot()[Category::kParameters];
    const auto peak = [&](const char* variant) {
      std::shared_ptr<nn::Llama> model;
      {
        const nn::DeferredStorage deferred;
        model = std::make_shared<nn::Llama>(config);
      }
      Zero3Sharding zero3(arguments(*model, values, communicator, variant));
      memory::reset_peaks();
      train::Trainer(zero3).step({batch});
      const std::int64_t held = memory::snapshot().peak_of(Category::kParameters) - before;
      std::int64_t missing[2] = {0, 0};  // of the root, of the largest other unit
      for (std::size_t u = 0; u < zero3.list().units.size(); ++u) {
        std::int64_t of_unit = 0;
        for (const std::size_t i : zero3.list().units[u].parameters) {
          if (!zero3.owns(i)) of_unit += zero3.list().parameters[i].bytes();
        }
        std::int64_t& place = missing[u == 0 ? 0 : 1];
        place = std::max(place, of_unit);
      }
      if (std::string(variant) == "unit") {
        EXPECT_EQ(held, owned_bytes(zero3) + missing[0] + missing[1]);
      } else {
        EXPECT_EQ(held, zero3.list().bytes());
      }
      return held;
    };
    EXPECT_LT(peak("unit"), peak("whole"));
  });
}

TEST(Zero3, SendsWhatTheFormulaSays) {
  for (const int ranks : {2, 3}) {
    on_ranks(ranks, [](dist::Communicator& communicator) {
      for (const char* variant : {"unit", "whole"}) {
        Toy toy;
        Zero3Sharding zero3(arguments(*toy.model, toy.values, communicator, variant));
        train::Trainer trainer(zero3);
        const dist::Traffic before = communicator.traffic();
        trainer.step({toy.batch(communicator.rank(), 0)});
        const dist::Traffic sent = communicator.traffic().since(before);
        EXPECT_EQ(sent.bytes(dist::Purpose::kGradient) + sent.bytes(dist::Purpose::kParameter),
                  zero3.predicted_traffic())
            << variant;
      }
    });
  }
}

TEST(Zero3, EvaluationGathersAndLeavesNothingBehind) {
  on_ranks(2, [](dist::Communicator& communicator) {
    for (const char* variant : {"unit", "whole"}) {
      Toy toy;
      Zero3Sharding zero3(arguments(*toy.model, toy.values, communicator, variant));
      train::Trainer trainer(zero3);
      const double loss = trainer.evaluate({toy.batch(communicator.rank(), 0)});
      expect_only_owned(zero3, "after evaluation");
      Toy alone;
      nn::initialize_parameters(*alone.model, alone.values);
      const c10::NoGradGuard no_grad;
      EXPECT_NEAR(loss, alone.model->loss(alone.concatenated_batch(2, 0)).item<double>(), 1e-6);
    }
  });
}

TEST(Zero3, UnshardedParametersAreWholeAndGoAgain) {
  on_ranks(2, [](dist::Communicator& communicator) {
    Toy toy;
    Zero3Sharding zero3(arguments(*toy.model, toy.values, communicator));
    Toy alone;
    nn::initialize_parameters(*alone.model, alone.values);
    const auto expected = alone.model->parameters();
    for (std::size_t u = 0; u < zero3.list().units.size(); ++u) {
      const train::UnshardedParameters whole(zero3, u);
      for (const std::size_t i : zero3.list().units[u].parameters) {
        EXPECT_TRUE(at::equal(zero3.list().parameters[i].tensor, expected[i]));
      }
    }
    expect_only_owned(zero3, "after reshard");
  });
}

}  // namespace
}  // namespace zero
