#include <c10/core/GradMode.h>

#include <algorithm>

#include <tests/support/deferred.hpp>
#include <tests/support/random_model.hpp>
#include <tests/support/ranks.hpp>
#include <tests/support/toy_run.hpp>
#include <tools/models/presets.hpp>
#include <zero/memory/storage.hpp>
#include <zero/nn/llama.hpp>

#include "zero3_sharding.hpp"

namespace zero {
namespace {

using memory::Category;
using testing::losses_of;
using testing::on_ranks;
using testing::owned_bytes;
using testing::Toy;
using Trial = testing::ToyRun<Zero3Sharding>;

// Which parameters have bytes on this rank: at rest, exactly the owned ones, and those cannot be
// read through the model either.
void expect_only_owned(const train::Strategy& strategy, const std::string& when) {
  for (std::size_t i = 0; i < strategy.list().size(); ++i) {
    const nn::Parameter& p = strategy.list().parameters[i];
    EXPECT_FALSE(memory::has_storage(p.tensor)) << when << ": " << p.name;
    const at::Tensor mine = strategy.placement(i).kept.tensor;
    EXPECT_EQ(mine.defined() && memory::has_storage(mine), strategy.owns(i))
        << when << ": " << p.name;
  }
}

TEST(Zero3, HoldsItsOwnParametersOnlyAtEveryPointOfRest) {
  for (const int ranks : {2, 3, 4}) {
    on_ranks(ranks, [](dist::Communicator& communicator) {
      for (const char* variant : {"unit", "whole"}) {
        Trial run(communicator, variant);
        expect_only_owned(run.strategy, "after construction");
        run.reduce(0);
        expect_only_owned(run.strategy, "after backward");
        run.strategy.optimizer_step();
        run.strategy.sync_parameters();
        const std::int64_t owned = owned_bytes(run.strategy);
        EXPECT_EQ(run.held(Category::kParameters), owned);
        EXPECT_EQ(run.held(Category::kGradients), owned);
        EXPECT_EQ(run.held(Category::kOptimizer), 2 * owned);
        EXPECT_LT(owned, run.strategy.list().bytes());
      }
    });
  }
}

// Built parameter by parameter: what a rank holds at the start is bounded by what it owns and the
// largest single parameter, also on rank 0, where all values come from.
TEST(Zero3, NoRankEverHoldsTheWholeModelAtTheStart) {
  on_ranks(3, [](dist::Communicator& communicator) {
    memory::reset_peaks();
    const Trial run(communicator, "unit");
    EXPECT_LE(run.peak(Category::kParameters),
              owned_bytes(run.strategy) + testing::largest_parameter(run.strategy.list()));
  });
}

// Within a step: owned, plus the root from forward to backward, plus one inner unit.
TEST(Zero3, PeakOfParametersIsOwnedPlusRootPlusOneUnit) {
  on_ranks(2, [](dist::Communicator& communicator) {
    nn::LlamaConfig config = tools::preset("tiny");
    config.layers = 6;
    nn::SeededValues values(1);
    const at::Tensor inputs = at::arange(16).view({1, 16}) + communicator.rank();
    const data::Batch batch{.inputs = inputs, .targets = inputs + 1, .loss_terms = 16};
    const std::int64_t before = memory::snapshot()[Category::kParameters];
    const auto peak = [&](const char* variant) {
      const auto model = testing::make_deferred<nn::Llama>(config);
      Zero3Sharding zero3({*model, communicator, optim::adamw(), &values, variant});
      memory::reset_peaks();
      tools::Trainer(zero3, losses_of(zero3)).step({batch});
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

TEST(Zero3, EvaluationGathersAndLeavesNothingBehind) {
  on_ranks(2, [](dist::Communicator& communicator) {
    const Toy alone = Toy::alone();
    for (const char* variant : {"unit", "whole"}) {
      Trial run(communicator, variant);
      const double loss = run.trainer.evaluate({run.batch(0)});
      expect_only_owned(run.strategy, "after evaluation");
      const c10::NoGradGuard no_grad;
      const data::Batch both = testing::concatenate({alone.batch(0, 0), alone.batch(1, 0)});
      EXPECT_NEAR(loss, data::loss_of(*alone.model, both).item<double>(), 1e-6);
    }
  });
}

}  // namespace
}  // namespace zero
