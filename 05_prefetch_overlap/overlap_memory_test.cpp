// What the engine holds, as the allocator sees it.

#include <fstream>

#include <tests/support/overlap_run.hpp>
#include <tests/support/ranks.hpp>
#include <zero/memory/storage.hpp>
#include <zero/train/unsharded_parameters.hpp>

namespace zero {
namespace {

using memory::Category;
using testing::forward_batch;
using testing::largest_bucket;
using testing::Medium;
using testing::on_ranks;
using testing::OverlapRun;
using testing::small_buckets;
using testing::Toy;

// Its shard is the model, and there is nobody to gather from.
TEST(ShardedDataParallel, ARankByItselfGathersNothing) {
  on_ranks(1, [](dist::Communicator& communicator) {
    OverlapRun<Medium> run(communicator, {.stage = 3});
    run.step(0);
    memory::reset_peaks();
    run.step(1);
    EXPECT_EQ(run.peak(Category::kParameters), run.strategy.costs().at_rest.parameters);
  });
}

// As the allocator sees it: gradients of all units at once, unless few may be in flight.
TEST(ShardedDataParallel, GradientsDoNotPileUp) {
  on_ranks(2, [](dist::Communicator& communicator) {
    std::int64_t shards = 0, all = 0, largest = 0;
    const auto peak_of = [&](std::int64_t in_flight_bytes) {
      OverlapRun<Medium> run(communicator, {.stage = 2, .in_flight_bytes = in_flight_bytes});
      shards = all = 0;
      for (const train::FlatParameters& bucket : run.strategy.buckets()) {
        shards += bucket.shard_bytes();
        all += bucket.full_bytes();
      }
      largest = largest_bucket(run.strategy);
      run.step(0);
      run.trainer.zero_grad();
      memory::reset_peaks();
      run.step(1);
      return run.peak(Category::kGradients);
    };
    // One is sent while the next is filled.
    const std::int64_t of_one = peak_of(1);
    EXPECT_LE(of_one, shards + 2 * largest);
    const std::int64_t of_many = peak_of(std::int64_t{1} << 40);
    EXPECT_GT(of_many, shards / 2 + all - largest);
  });
}

int threads() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    if (word != "Threads:") continue;
    status >> word;
    return std::stoi(word);
  }
  return -1;
}

TEST(OverlapSlow, AThousandStepsLeaveNothingBehind) {
  on_ranks(2, [](dist::Communicator& communicator) {
    for (const int stage : {0, 1, 2, 3}) {
      OverlapRun<Toy> run(communicator, small_buckets(stage));
      std::int64_t live = 0;
      int threads_then = 0;
      for (int s = 0; s < 1010; ++s) {
        run.step(s);
        run.trainer.zero_grad();
        if (s != 9) continue;
        live = memory::snapshot().total;
        threads_then = threads();
      }
      EXPECT_EQ(memory::snapshot().total, live) << "stage " << stage;
      EXPECT_EQ(threads(), threads_then) << "stage " << stage;
    }
  });
}

// Neither gathered nor copied: a window of the shard, before, between and after steps.
TEST(ShardedDataParallel, KeepsWhatLiesInItsShardInPlace) {
  on_ranks(2, [](dist::Communicator& communicator) {
    OverlapRun<Medium> run(communicator);
    for (int step = 0; step < 3; ++step) {
      int here = 0;
      int elsewhere = 0;
      for (const train::FlatParameters& bucket : run.strategy.buckets()) {
        for (std::size_t m = 0; m < bucket.members().size(); ++m) {
          const nn::Parameter& p = run.strategy.list().parameters[bucket.members()[m]];
          const train::ParameterShard mine = bucket.placement(m).kept;
          const bool all = mine.tensor.defined() && mine.tensor.numel() == bucket.layout().size(m);
          EXPECT_FALSE(memory::has_storage(p.tensor));
          const train::UnshardedParameters whole(run.strategy, p.unit);
          if (all) {
            EXPECT_EQ(p.tensor.const_data_ptr(), mine.tensor.const_data_ptr());
          }
          ++(all ? here : elsewhere);
        }
      }
      // A weight and its bias: the first half is of the weight alone.
      EXPECT_EQ(here > 0, communicator.rank() == 1);
      EXPECT_GT(elsewhere, 0);
      run.step(step);
    }
  });
}

struct EqualUnits : Toy {
  EqualUnits()
      : Toy(tools::MlpConfig{
            .inputs = 63, .hidden = std::vector<std::int64_t>(9, 64), .outputs = 9}) {}
};

TEST(ShardedDataParallel, AllocatesMoreOftenWithoutKeptBuffers) {
  on_ranks(2, [](dist::Communicator& communicator) {
    std::vector<std::int64_t> allocations;
    for (const bool keep : {true, false}) {
      OverlapRun<EqualUnits> run(communicator, {.stage = 3, .keep_buffers = keep});
      run.step(0);
      const std::int64_t before = memory::snapshot().allocations;
      run.step(1);
      allocations.push_back(memory::snapshot().allocations - before);
    }
    // Of eight equal units some parameters and gradients come from the pool.
    EXPECT_LT(allocations[0] + 8, allocations[1]);
  });
}

// The bound of the lesson: the shards, and while a unit runs, it, `lookahead` more, the one that is
// being resharded, and the root.
TEST(ShardedDataParallel, HoldsTheUnitsAheadAndNoMore) {
  on_ranks(2, [](dist::Communicator& communicator) {
    for (const std::int64_t lookahead : {0, 1, 2}) {
      OverlapRun<Medium> run(communicator, {.lookahead = lookahead});
      run.step(0);
      memory::reset_peaks();
      const std::int64_t rest = run.held(Category::kParameters);
      EXPECT_EQ(rest, run.strategy.costs().at_rest.parameters);
      run.step(1);
      const std::int64_t peak = run.peak(Category::kParameters) - rest;
      const std::int64_t root = run.strategy.buckets().front().full_bytes();
      const std::int64_t largest = largest_bucket(run.strategy);
      EXPECT_LE(peak, root + (lookahead + 1) * largest);
      EXPECT_GT(peak, lookahead * largest / 2);
      EXPECT_EQ(run.held(Category::kParameters), rest);
    }
  });
}

// Parameters, gradients and optimizer states together, as the allocator has them: a unit that runs
// and one ahead, gradients that are filled and that are in flight, less the root's shard of
// gradients, which is still to come. So are those of two units where they are not kept from step to
// step.
TEST(ShardedDataParallel, HoldsItsShardsTheRootAndFourUnits) {
  on_ranks(2, [](dist::Communicator& communicator) {
    std::int64_t beside[2];
    for (const bool keep : {false, true}) {
      // This toy is smaller than the default of what may be in flight.
      OverlapRun<Medium> run(communicator, {.in_flight_bytes = 1, .keep_gradients = keep});
      run.step(0);
      const std::int64_t rest = memory::snapshot().model_states();
      EXPECT_EQ(rest, run.strategy.costs().at_rest.total());
      const auto& buckets = run.strategy.buckets();  // the root, then layer after layer
      const std::int64_t root = buckets[0].full_bytes();
      std::int64_t to_come = buckets[0].shard_bytes();
      if (!keep) to_come += buckets[1].shard_bytes() + buckets[2].shard_bytes();
      run.trainer.zero_grad();
      memory::reset_peaks();
      run.step(1);
      beside[keep ? 1 : 0] = memory::snapshot().states_peak - rest;
      EXPECT_LE(beside[keep ? 1 : 0], 4 * largest_bucket(run.strategy) + 2 * root - to_come)
          << keep;
    }
    EXPECT_GT(beside[1], beside[0]);
  });
}

TEST(ShardedDataParallel, GradientsHaveTheSameBytesInEveryStep) {
  on_ranks(2, [](dist::Communicator& communicator) {
    for (const int stage : {0, 1, 2, 3}) {
      for (const bool keep : {true, false}) {
        SCOPED_TRACE("stage " + std::to_string(stage) + (keep ? " keeps" : " gives back"));
        OverlapRun<Medium> run(communicator, {.stage = stage, .keep_gradients = keep});
        const ShardedDataParallel& strategy = run.strategy;
        const std::size_t last = strategy.buckets().back().members().back();
        // The root's shards come last in backward and are never kept.
        const std::int64_t root = stage < 2 ? 0 : strategy.buckets().front().shard_bytes();
        const auto place_after_step = [&](int s) {
          run.step(s);
          EXPECT_EQ(run.held(Category::kGradients), strategy.costs().at_rest.gradients);
          const train::ParameterShard piece = strategy.placement(last).updated;
          return piece.tensor.defined() ? piece.tensor.grad() : at::Tensor();
        };
        at::Tensor gradient = place_after_step(0);
        const void* const place = gradient.defined() ? gradient.const_data_ptr() : nullptr;
        gradient.reset();
        run.trainer.zero_grad();
        EXPECT_EQ(run.held(Category::kGradients),
                  keep ? strategy.costs().at_rest.gradients - root : 0);
        gradient = place_after_step(1);
        if (keep && gradient.defined()) {
          EXPECT_EQ(gradient.const_data_ptr(), place);
        }
        // Who holds a gradient longer than the step finds in it what was there.
        const at::Tensor copy = gradient.defined() ? gradient.clone() : at::Tensor();
        run.trainer.zero_grad();
        run.step(2);
        EXPECT_TRUE(!gradient.defined() || at::equal(gradient, copy));
      }
    }
  });
}

// Two reductions without zero_grad() between them: what somebody has of the first stays.
TEST(ShardedDataParallel, AGradientThatIsHeldSurvivesTheNextReduction) {
  on_ranks(2, [](dist::Communicator& communicator) {
    for (const int stage : {2, 3}) {
      OverlapRun<Medium> run(communicator, {.stage = stage});
      run.reduce(0);
      std::vector<std::pair<at::Tensor, at::Tensor>> held;  // and copies of them
      for (std::size_t i = 0; i < run.strategy.list().size(); ++i) {
        const at::Tensor mine = run.strategy.placement(i).updated.tensor;
        if (mine.defined()) held.emplace_back(mine.grad(), mine.grad().clone());
      }
      ASSERT_FALSE(held.empty());
      run.reduce(1);
      for (const auto& [gradient, copy] : held) EXPECT_TRUE(at::equal(gradient, copy)) << stage;
    }
  });
}

TEST(ShardedDataParallel, KeepsNothingAfterAnEvaluationOrAReading) {
  on_ranks(2, [](dist::Communicator& communicator) {
    for (const int stage : {1, 2, 3}) {
      SCOPED_TRACE("stage " + std::to_string(stage));
      OverlapRun<Medium> run(communicator, {.stage = stage});
      run.step(0);
      const std::int64_t rest = run.strategy.costs().at_rest.parameters;
      run.trainer.evaluate({run.batch(1)});
      EXPECT_EQ(run.held(Category::kParameters), rest);
      for (std::size_t u = 0; u < run.strategy.list().units.size(); ++u) {
        const train::UnshardedParameters whole(run.strategy, u);
      }
      EXPECT_EQ(run.held(Category::kParameters), rest);
      forward_batch(run.strategy, run.batch(2));  // no backward follows
      run.strategy.optimizer_step();
      EXPECT_EQ(run.held(Category::kParameters), rest);
      run.strategy.sync_parameters();
      run.strategy.sync_parameters();  // once more: what is on its way is waited for
    }
  });
}

}  // namespace
}  // namespace zero
