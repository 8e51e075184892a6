// What the engine holds, as the allocator sees it.

#include <gtest/gtest.h>

#include <fstream>

#include <tests/support/ranks.hpp>
#include <tests/support/toy.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/memory/storage.hpp>
#include <zero/optim/adamw.hpp>
#include <zero/train/trainer.hpp>

#include "overlap.hpp"
#include "test_runs.hpp"

namespace zero {
namespace {

using memory::Category;
using testing::Medium;
using testing::on_ranks;
using testing::small_buckets;
using testing::Toy;

// Its shard is the model, and there is nobody to gather from.
TEST(Overlap, ARankByItselfGathersNothing) {
  on_ranks(1, [](dist::Communicator& communicator) {
    Medium toy;
    Overlap strategy({*toy.model, communicator, optim::adamw(), &toy.values, ""}, {.stage = 3});
    train::Trainer trainer(strategy);
    trainer.step({toy.batch(0, 0)});
    memory::reset_peaks();
    trainer.step({toy.batch(0, 1)});
    EXPECT_EQ(memory::snapshot().peak_of(Category::kParameters),
              strategy.predicted_bytes().parameters);
  });
}

// As the allocator sees it: gradients of all units at once, unless few may be in flight.
TEST(Overlap, GradientsDoNotPileUp) {
  on_ranks(2, [](dist::Communicator& communicator) {
    const auto peak_of = [&](std::int64_t in_flight_bytes) {
      Medium toy;
      OverlapOptions options;
      options.stage = 2;
      options.in_flight_bytes = in_flight_bytes;
      Overlap strategy({*toy.model, communicator, optim::adamw(), &toy.values, ""}, options);
      train::Trainer trainer(strategy);
      trainer.step({toy.batch(communicator.rank(), 0)});
      trainer.zero_grad();
      memory::reset_peaks();
      trainer.step({toy.batch(communicator.rank(), 1)});
      return memory::snapshot().peak_of(Category::kGradients);
    };
    Medium toy;
    const Overlap strategy({*toy.model, communicator, optim::adamw(), &toy.values, ""},
                           {.stage = 2});
    std::int64_t shards = 0, all = 0, largest = 0;
    for (const train::FlatParameters& bucket : strategy.buckets()) {
      shards += bucket.shard_bytes();
      all += bucket.full_bytes();
      largest = std::max(largest, bucket.full_bytes());
    }
    // One is sent while the next is filled.
    EXPECT_LE(peak_of(1), shards + 2 * largest);
    EXPECT_GT(peak_of(std::int64_t{1} << 40), shards / 2 + all - largest);
  });
}

TEST(OverlapSlow, AThousandStepsLeaveNothingBehind) {
  on_ranks(2, [](dist::Communicator& communicator) {
    const auto threads = [] {
      std::ifstream status("/proc/self/status");
      for (std::string word; status >> word;) {
        if (word == "Threads:") {
          status >> word;
          return std::stoi(word);
        }
      }
      return -1;
    };
    for (const int stage : {0, 1, 2, 3}) {
      Toy toy;
      OverlapOptions options = small_buckets(stage);
      options.lookahead = kAutoLookahead;
      Overlap strategy({*toy.model, communicator, optim::adamw(), &toy.values, ""}, options);
      train::Trainer trainer(strategy);
      const auto step = [&](int s) {
        trainer.step({toy.batch(communicator.rank(), s)});
        trainer.zero_grad();
      };
      for (int s = 0; s < 10; ++s) step(s);
      const std::int64_t live = memory::snapshot().total;
      const int threads_then = threads();
      for (int s = 10; s < 1010; ++s) step(s);
      EXPECT_EQ(memory::snapshot().total, live) << "stage " << stage;
      EXPECT_EQ(threads(), threads_then) << "stage " << stage;
    }
  });
}

// Neither gathered nor copied: a window of the shard, before, between and after steps.
TEST(Overlap, KeepsWhatLiesInItsShardInPlace) {
  on_ranks(2, [](dist::Communicator& communicator) {
    Medium toy;
    OverlapOptions options;
    options.stage = 3;
    Overlap strategy({*toy.model, communicator, optim::adamw(), &toy.values, ""}, options);
    train::Trainer trainer(strategy);
    for (int step = 0; step < 3; ++step) {
      int here = 0;
      int elsewhere = 0;
      for (const train::FlatParameters& bucket : strategy.buckets()) {
        for (std::size_t m = 0; m < bucket.members().size(); ++m) {
          const at::Tensor& parameter = strategy.list().parameters[bucket.members()[m]].tensor;
          const train::ParameterShard mine = bucket.local_shard(m);
          const bool all = mine.tensor.defined() && mine.tensor.numel() == bucket.layout().size(m);
          EXPECT_FALSE(memory::has_storage(parameter));
          const train::UnshardedParameters whole(
              strategy, strategy.list().parameters[bucket.members()[m]].unit);
          if (all) {
            EXPECT_EQ(parameter.const_data_ptr(), mine.tensor.const_data_ptr());
          }
          ++(all ? here : elsewhere);
        }
      }
      // A weight and its bias: the first half is of the weight alone.
      EXPECT_EQ(here > 0, communicator.rank() == 1);
      EXPECT_GT(elsewhere, 0);
      trainer.step({toy.batch(communicator.rank(), step)});
    }
  });
}

TEST(Overlap, AllocatesMoreOftenWithoutKeptBuffers) {
  struct EqualUnits : Toy {
    EqualUnits() {
      const nn::DeferredStorage deferred;
      nn::MlpConfig config;
      config.inputs = 63;
      config.hidden = std::vector<std::int64_t>(9, 64);
      config.outputs = 9;
      model = std::make_shared<nn::Mlp>(config);
    }
  };
  on_ranks(2, [](dist::Communicator& communicator) {
    std::vector<std::int64_t> allocations;
    for (const bool keep : {true, false}) {
      EqualUnits toy;
      OverlapOptions options;
      options.stage = 3;
      options.keep_buffers = keep;
      Overlap strategy({*toy.model, communicator, optim::adamw(), &toy.values, ""}, options);
      train::Trainer trainer(strategy);
      trainer.step({toy.batch(communicator.rank(), 0)});
      const std::int64_t before = memory::snapshot().allocations;
      trainer.step({toy.batch(communicator.rank(), 1)});
      allocations.push_back(memory::snapshot().allocations - before);
    }
    // Of eight equal units some parameters and gradients come from the pool.
    EXPECT_LT(allocations[0] + 8, allocations[1]);
  });
}

TEST(Overlap, HoldsNoMoreUnderWayThanAllowed) {
  on_ranks(2, [](dist::Communicator& communicator) {
    for (const int stage : {0, 2, 3}) {
      Medium toy;
      OverlapOptions options;
      options.stage = stage;
      options.bucket_bytes = 300 << 10;
      options.in_flight_bytes = 600 << 10;
      Overlap strategy({*toy.model, communicator, optim::adamw(), &toy.values, ""}, options);
      train::Trainer trainer(strategy);
      trainer.step({toy.batch(communicator.rank(), 0)});
      EXPECT_LE(strategy.most_in_flight(), options.in_flight_bytes);
      EXPECT_GT(strategy.most_in_flight(), options.bucket_bytes);  // more than one
    }
  });
}

// The bound of the lesson: the shards, and while a unit runs, it, `lookahead` more, the one that is
// being resharded, and the root.
TEST(Overlap, HoldsTheUnitsAheadAndNoMore) {
  on_ranks(2, [](dist::Communicator& communicator) {
    for (const std::int64_t lookahead : {0, 1, 2}) {
      Medium toy;
      OverlapOptions options;
      options.lookahead = lookahead;
      Overlap strategy({*toy.model, communicator, optim::adamw(), &toy.values, ""}, options);
      train::Trainer trainer(strategy);
      trainer.step({toy.batch(communicator.rank(), 0)});
      std::int64_t largest = 0;
      for (const train::FlatParameters& bucket : strategy.buckets()) {
        largest = std::max(largest, bucket.full_bytes());
      }
      memory::reset_peaks();
      const std::int64_t rest = memory::snapshot()[Category::kParameters];
      EXPECT_EQ(rest, strategy.predicted_bytes().parameters);
      trainer.step({toy.batch(communicator.rank(), 1)});
      const std::int64_t peak = memory::snapshot().peak_of(Category::kParameters) - rest;
      const std::int64_t root = strategy.buckets().front().full_bytes();
      EXPECT_LE(peak, root + (lookahead + 1) * largest);
      EXPECT_GT(peak, lookahead * largest / 2);
      EXPECT_EQ(memory::snapshot()[Category::kParameters], rest);
    }
  });
}

// Parameters, gradients and optimizer states together, as the allocator has them: a unit that runs
// and one ahead, gradients that are filled and that are in flight, less the root's shard of
// gradients, which is still to come. So are those of two units where they are not kept from step to
// step.
TEST(Overlap, HoldsItsShardsTheRootAndFourUnits) {
  on_ranks(2, [](dist::Communicator& communicator) {
    std::int64_t beside[2];
    for (const bool keep : {false, true}) {
      Medium toy;
      OverlapOptions options;
      options.in_flight_bytes = 1;  // this toy is smaller than the default
      options.keep_gradients = keep;
      Overlap strategy({*toy.model, communicator, optim::adamw(), &toy.values, ""}, options);
      train::Trainer trainer(strategy);
      trainer.step({toy.batch(communicator.rank(), 0)});
      const std::int64_t rest = memory::snapshot().model_states();
      EXPECT_EQ(rest, strategy.predicted_bytes().total());
      std::int64_t largest = 0;
      for (const train::FlatParameters& bucket : strategy.buckets()) {
        largest = std::max(largest, bucket.full_bytes());
      }
      const auto& buckets = strategy.buckets();  // the root, then layer after layer
      const std::int64_t root = buckets[0].full_bytes();
      std::int64_t to_come = buckets[0].shard_bytes();
      if (!keep) to_come += buckets[1].shard_bytes() + buckets[2].shard_bytes();
      trainer.zero_grad();
      memory::reset_peaks();
      trainer.step({toy.batch(communicator.rank(), 1)});
      beside[keep ? 1 : 0] = memory::snapshot().states_peak - rest;
      EXPECT_LE(beside[keep ? 1 : 0], 4 * largest + 2 * root - to_come) << keep;
    }
    EXPECT_GT(beside[1], beside[0]);
  });
}

TEST(Overlap, GradientsHaveTheSameBytesInEveryStep) {
  on_ranks(2, [](dist::Communicator& communicator) {
    const auto held = [] { return memory::snapshot()[Category::kGradients]; };
    for (const int stage : {0, 1, 2, 3}) {
      for (const bool keep : {true, false}) {
        SCOPED_TRACE("stage " + std::to_string(stage) + (keep ? " keeps" : " gives back"));
        Medium toy;
        Overlap strategy({*toy.model, communicator, optim::adamw(), &toy.values, ""},
                         {.stage = stage, .keep_gradients = keep});
        train::Trainer trainer(strategy);
        const std::size_t last = strategy.buckets().back().members().back();
        // The root's shards come last in backward and are never kept.
        const std::int64_t root = stage < 2 ? 0 : strategy.buckets().front().shard_bytes();
        const auto place_after_step = [&](int s) {
          trainer.step({toy.batch(communicator.rank(), s)});
          EXPECT_EQ(held(), strategy.predicted_bytes().gradients);
          const train::ParameterShard piece = strategy.piece(last);
          return piece.tensor.defined() ? piece.tensor.grad() : at::Tensor();
        };
        at::Tensor gradient = place_after_step(0);
        const void* const place = gradient.defined() ? gradient.const_data_ptr() : nullptr;
        gradient.reset();
        trainer.zero_grad();
        EXPECT_EQ(held(), keep ? strategy.predicted_bytes().gradients - root : 0);
        gradient = place_after_step(1);
        if (keep && gradient.defined()) {
          EXPECT_EQ(gradient.const_data_ptr(), place);
        }
        // Who holds a gradient longer than the step finds in it what was there.
        const at::Tensor copy = gradient.defined() ? gradient.clone() : at::Tensor();
        trainer.zero_grad();
        trainer.step({toy.batch(communicator.rank(), 2)});
        EXPECT_TRUE(!gradient.defined() || at::equal(gradient, copy));
      }
    }
  });
}

// Two reductions without zero_grad() between them: what somebody has of the first stays.
TEST(Overlap, AGradientThatIsHeldSurvivesTheNextReduction) {
  on_ranks(2, [](dist::Communicator& communicator) {
    for (const int stage : {2, 3}) {
      Medium toy;
      Overlap strategy({*toy.model, communicator, optim::adamw(), &toy.values, ""},
                       {.stage = stage});
      const auto reduce = [&](int step) {
        strategy.backward(strategy.forward(toy.batch(communicator.rank(), step)));
        strategy.finish_backward();
      };
      reduce(0);
      std::vector<std::pair<at::Tensor, at::Tensor>> held;  // and copies of them
      for (std::size_t i = 0; i < strategy.list().size(); ++i) {
        const at::Tensor mine = strategy.piece(i).tensor;
        if (mine.defined()) held.emplace_back(mine.grad(), mine.grad().clone());
      }
      ASSERT_FALSE(held.empty());
      reduce(1);
      for (const auto& [gradient, copy] : held) EXPECT_TRUE(at::equal(gradient, copy)) << stage;
    }
  });
}

TEST(Overlap, KeepsNothingAfterAnEvaluationOrAReading) {
  on_ranks(2, [](dist::Communicator& communicator) {
    for (const int stage : {1, 2, 3}) {
      Medium toy;
      Overlap strategy({*toy.model, communicator, optim::adamw(), &toy.values, ""},
                       {.stage = stage});
      train::Trainer trainer(strategy);
      trainer.step({toy.batch(communicator.rank(), 0)});
      const train::ModelStateBytes rest = strategy.predicted_bytes();
      const auto held = [] { return memory::snapshot()[Category::kParameters]; };
      trainer.evaluate({toy.batch(communicator.rank(), 1)});
      EXPECT_EQ(held(), rest.parameters) << "stage " << stage;
      for (std::size_t u = 0; u < strategy.list().units.size(); ++u) {
        const train::UnshardedParameters whole(strategy, u);
      }
      EXPECT_EQ(held(), rest.parameters) << "stage " << stage;
      strategy.forward(toy.batch(communicator.rank(), 2));  // no backward follows
      strategy.optimizer_step();
      EXPECT_EQ(held(), rest.parameters) << "stage " << stage;
      strategy.sync_parameters();
      strategy.sync_parameters();  // once more: what is on its way is waited for
    }
  });
}

}  // namespace
}  // namespace zero
