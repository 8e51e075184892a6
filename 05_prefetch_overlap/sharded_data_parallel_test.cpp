#include "sharded_data_parallel.hpp"

#include <random>
#include <set>
#include <thread>

#include <tests/support/error_of.hpp>
#include <tests/support/hooked_communicator.hpp>
#include <tests/support/overlap_run.hpp>
#include <tests/support/ranks.hpp>
#include <zero/base/error.hpp>
#include <zero/distributed/agreement.hpp>
#include <zero/memory/storage.hpp>

namespace zero {
namespace {

using memory::Category;
using testing::expect_equal;
using testing::forward_batch;
using testing::Hooked;
using testing::Medium;
using testing::on_ranks;
using testing::OverlapRun;
using testing::Toy;
using testing::trained;
using testing::whole_weights;

// No late message and no late rank may change a bit. Only lateness shows a read that does not wait.
void random_delays(int seeds) {
  for (int seed = 0; seed < seeds; ++seed) {
    on_ranks(3, [seed](dist::Communicator& communicator) {
      for (const int stage : {0, 1, 2, 3}) {
        const std::vector<at::Tensor> expected =
            trained(communicator, {.stage = stage, .in_flight_bytes = 1, .lookahead = 0}, 3);
        std::minstd_rand draw(static_cast<unsigned>(97 * seed + communicator.rank() + 1));
        const auto delay = [&draw] {
          std::this_thread::sleep_for(std::chrono::microseconds(draw() % 400));
        };
        const Hooked late(communicator, [&](dist::Operation, dist::Purpose, bool) { delay(); });
        const ShardingOptions options = {.stage = stage,
                                         .bucket_bytes = 1 << (6 + seed % 7),
                                         .in_flight_bytes = 1 << (8 + seed % 8),
                                         .lookahead = seed % 4};
        expect_equal(trained(communicator, options, 3, delay), expected,
                     "stage " + std::to_string(stage) + ", seed " + std::to_string(seed));
      }
    });
  }
}

TEST(ShardedDataParallel, RandomDelaysChangeNothing) { random_delays(10); }
TEST(OverlapSlow, RandomDelaysChangeNothingOverManySeeds) { random_delays(200); }

TEST(ShardedDataParallel, BucketsAreFullOfNeighboursAndNoLargerThanAsked) {
  on_ranks(2, [](dist::Communicator& communicator) {
    const ShardingOptions options{.bucket_bytes = 100 << 10};
    const OverlapRun<Medium> run(communicator, options);
    const ShardedDataParallel& strategy = run.strategy;
    std::set<std::size_t> seen;
    for (const train::FlatParameters& bucket : strategy.buckets()) {
      std::int64_t bytes = 0;
      std::size_t next = bucket.members().front();
      for (const std::size_t i : bucket.members()) {
        EXPECT_EQ(i, next++);
        EXPECT_TRUE(seen.insert(i).second);
        EXPECT_EQ(strategy.list().parameters[i].unit,
                  strategy.list().parameters[bucket.members().front()].unit);
        bytes += strategy.list().parameters[i].bytes();
      }
      // A weight of 260 KiB does not fit: it is alone.
      EXPECT_TRUE(bytes <= options.bucket_bytes || bucket.members().size() == 1);
    }
    EXPECT_EQ(seen.size(), strategy.list().size());
    const OverlapRun<Medium> roomy(communicator);
    const std::size_t units = strategy.list().units.size();
    EXPECT_EQ(roomy.strategy.buckets().size(), units);
    // As large as the largest of them is enough.
    ShardingOptions exact{.bucket_bytes = 0};
    for (const train::FlatParameters& bucket : roomy.strategy.buckets()) {
      exact.bucket_bytes = std::max(exact.bucket_bytes, bucket.bytes());
    }
    EXPECT_EQ(OverlapRun<Medium>(communicator, exact).strategy.buckets().size(), units);
  });
}

TEST(ShardedDataParallel, KnowsTheOrderAfterOneStepAndCopesWithAnother) {
  on_ranks(2, [](dist::Communicator& communicator) {
    OverlapRun<Toy> run(communicator);
    ShardedDataParallel& strategy = run.strategy;
    {
      const c10::NoGradGuard no_grad;  // an evaluation is no step to learn from
      forward_batch(strategy, run.batch(0));
    }
    EXPECT_FALSE(strategy.knows_order());
    run.step(0);
    EXPECT_TRUE(strategy.knows_order());
    run.step(1);
    run.trainer.evaluate({run.batch(2)});
    EXPECT_EQ(strategy.passes_that_differed(), 0);
    // Two forwards before one backward: that backward has twice as many units.
    const at::Tensor one = forward_batch(strategy, run.batch(2));
    const at::Tensor two = forward_batch(strategy, run.batch(3));
    strategy.zero_grad();
    strategy.backward(one + two);
    strategy.finish_backward();
    EXPECT_EQ(strategy.passes_that_differed(), 1);
    strategy.optimizer_step();
    strategy.sync_parameters();
    run.step(4);
    EXPECT_EQ(strategy.passes_that_differed(), 1);
  });
}

// A caller that reads or writes what rests on a rank, such as a checkpoint, while updated
// parameters are gathered.
TEST(ShardedDataParallel, LocalShardsHaveTheirValuesWhileParametersAreGathered) {
  on_ranks(2, [](dist::Communicator& communicator) {
    for (const int stage : {1, 2}) {
      OverlapRun<Toy> deferring(communicator, {.stage = stage, .defer_parameter_gather = true});
      OverlapRun<Toy> plain(communicator, {.stage = stage});
      plain.step(0);
      deferring.step(0);  // the last to wait for anything
      for (std::size_t i = 0; i < plain.strategy.list().size(); ++i) {
        deferring.strategy.bring(i);
        EXPECT_TRUE(at::equal(memory::raw(deferring.strategy.placement(i).kept.tensor),
                              memory::raw(plain.strategy.placement(i).kept.tensor)))
            << "stage " << stage << ", parameter " << i;
      }
    }
  });
}

// What was kept for the next unit is free by the time that the last one runs backward.
TEST(ShardedDataParallel, KeepsNoBuffersForALastUnit) {
  struct Even : Toy {  // a kept buffer fits every unit
    Even() : Toy(tools::MlpConfig{.inputs = 64, .hidden = {64, 64, 64, 64, 64}, .outputs = 9}) {}
  };
  on_ranks(2, [](dist::Communicator& communicator) {
    struct Held {
      std::int64_t most, last;  // as gradients arrive
    };
    const auto held = [&](bool keeps) {
      // One gradient is in flight at a time: the next does not take all that is kept.
      OverlapRun<Even> run(communicator,
                           {.in_flight_bytes = 1, .lookahead = 3, .keep_buffers = keeps});
      run.step(0);  // learns the order
      Held held{};
      run.strategy.passes().observe_gradients([&](std::size_t, const at::Tensor&) {
        held.last = run.held(Category::kParameters);
        held.most = std::max(held.most, held.last);
      });
      run.step(1);
      return held;
    };
    const Held kept = held(true), freed = held(false);
    EXPECT_EQ(kept.last, freed.last);
    EXPECT_LT(kept.last, kept.most);
  });
}

TEST(ShardedDataParallel, KeepsSmallUnitsWholeIfAskedTo) {
  on_ranks(2, [](dist::Communicator& communicator) {
    // Of the units only the last, 257 x 9 and 9.
    const OverlapRun<Medium> run(communicator, {.whole_below = 10000});
    const auto& buckets = run.strategy.buckets();
    const auto whole = std::count_if(buckets.begin(), buckets.end(),
                                     [](const auto& bucket) { return bucket.is_whole(); });
    EXPECT_GE(whole, 1);
    EXPECT_LT(whole, std::ssize(buckets));
    EXPECT_EQ(run.held(Category::kParameters), run.strategy.costs().at_rest.parameters);
    // A unit of exactly so many elements is not below it.
    const OverlapRun<Medium> at_limit(communicator, {.whole_below = 257 * 9 + 9});
    EXPECT_FALSE(at_limit.strategy.buckets().front().is_whole());
    expect_equal(trained(communicator, {.whole_below = 300}, 3),
                 trained(communicator, {.whole_below = 0}, 3), "whole_below");
  });
}

// The first gathers are in flight then.
TEST(ShardedDataParallel, ParametersMayBeSentAgainBeforeTheyAreUsed) {
  on_ranks(2, [](dist::Communicator& communicator) {
    for (const int stage : {1, 2}) {
      const ShardingOptions options{.stage = stage, .defer_parameter_gather = true};
      OverlapRun<Toy> twice(communicator, options), once(communicator, options);
      for (int step = 0; step < 2; ++step) {
        twice.step(step);
        twice.strategy.sync_parameters();
        once.step(step);
      }
      expect_equal(whole_weights(twice.strategy), whole_weights(once.strategy), "sent twice");
    }
  });
}

TEST(ShardedDataParallel, LeavesAModelFreeIfItsConstructorThrows) {
  on_ranks(2, [](dist::Communicator& communicator) {
    Toy toy;
    const train::StrategyArguments arguments{*toy.model, communicator, optim::adamw(), &toy.values};
    train::Transfers transfers;
    transfers.parameters =
        [](const train::FlatBuffer&) -> std::unique_ptr<train::ParameterTransfer> {
      throw Error("no transfer");
    };
    testing::expect_error([&] { ShardedDataParallel(arguments, {.stage = 3}, transfers); },
                          {"no transfer"});
    ShardedDataParallel second(arguments, {.stage = 3});
    const at::Tensor loss = forward_batch(second, toy.batch(communicator.rank(), 0));
    EXPECT_GT(loss.item<float>(), 0);
  });
}

}  // namespace
}  // namespace zero
