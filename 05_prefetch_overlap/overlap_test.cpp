#include "overlap.hpp"

#include <c10/core/GradMode.h>
#include <gmock/gmock.h>

#include <fstream>
#include <harness.hpp>
#include <random>
#include <set>
#include <thread>
#include <zero/error.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/memory/storage.hpp>
#include <zero/train/trainer.hpp>

#include "hooked_communicator.hpp"
#include "test_runs.hpp"
#include "toy.hpp"

namespace zero {
namespace {

using memory::Category;
using testing::expect_equal;
using testing::HookedCommunicator;
using testing::Medium;
using testing::on_ranks;
using testing::small_buckets;
using testing::Toy;
using testing::trained;

// Whatever arrives late, and whoever is late, must not change a bit.
void random_delays(int seeds) {
  for (int seed = 0; seed < seeds; ++seed) {
    on_ranks(3, [seed](dist::Communicator& communicator) {
      for (const int stage : {0, 1, 2, 3}) {
        OverlapOptions plain;
        plain.stage = stage;
        plain.lookahead = 0;
        plain.in_flight_bytes = 1;  // one after the other
        const std::vector<at::Tensor> expected = trained(communicator, plain, 3);
        std::minstd_rand draw(static_cast<unsigned>(97 * seed + communicator.rank() + 1));
        const auto delay = [&draw] {
          std::this_thread::sleep_for(std::chrono::microseconds(draw() % 400));
        };
        HookedCommunicator late(communicator,
                                [&](dist::Operation, dist::Purpose, bool) { delay(); });
        OverlapOptions options = small_buckets(stage);
        options.bucket_bytes = 1 << (6 + seed % 7);
        options.lookahead = seed % 4;
        options.in_flight_bytes = 1 << (8 + seed % 8);
        expect_equal(trained(late, options, 3, delay), expected,
                     "stage " + std::to_string(stage) + ", seed " + std::to_string(seed));
      }
    });
  }
}

TEST(Overlap, RandomDelaysChangeNothing) { random_delays(10); }
TEST(OverlapSlow, RandomDelaysChangeNothingOverManySeeds) { random_delays(200); }

TEST(Overlap, BucketsAreFullOfNeighboursAndNoLargerThanAsked) {
  on_ranks(2, [](dist::Communicator& communicator) {
    Medium toy;
    OverlapOptions options;
    options.bucket_bytes = 100 << 10;
    const Overlap strategy({*toy.model, communicator, optim::adamw(), &toy.values, ""}, options);
    std::set<std::size_t> seen;
    for (const Bucket& bucket : strategy.buckets()) {
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
    Medium other;
    const OverlapOptions roomy;
    const Overlap whole({*other.model, communicator, optim::adamw(), &other.values, ""}, roomy);
    EXPECT_EQ(whole.buckets().size(), whole.list().units.size());
  });
}

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

// As the allocator sees it: gradients of all units at once, unless few may be under way.
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
    for (const Bucket& bucket : strategy.buckets()) {
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
      for (const Bucket& bucket : strategy.buckets()) {
        for (std::size_t m = 0; m < bucket.members().size(); ++m) {
          const at::Tensor& parameter = strategy.list().parameters[bucket.members()[m]].tensor;
          const train::Piece mine = bucket.stored(m);
          const bool all = mine.tensor.defined() && mine.tensor.numel() == bucket.layout().size(m);
          EXPECT_EQ(memory::has_storage(parameter), all);
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
      for (const Bucket& bucket : strategy.buckets()) {
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
// and one ahead, gradients that are filled and that are under way, while two units' shards of
// gradients are still to come.
TEST(Overlap, HoldsItsShardsTheRootAndFourUnitsLessTwoShards) {
  on_ranks(2, [](dist::Communicator& communicator) {
    Medium toy;
    OverlapOptions options;
    options.in_flight_bytes = 1;  // this toy is smaller than the default
    Overlap strategy({*toy.model, communicator, optim::adamw(), &toy.values, ""}, options);
    train::Trainer trainer(strategy);
    trainer.step({toy.batch(communicator.rank(), 0)});
    const std::int64_t rest = memory::snapshot().model_states();
    EXPECT_EQ(rest, strategy.predicted_bytes().total());
    std::int64_t largest = 0;
    for (const Bucket& bucket : strategy.buckets()) {
      largest = std::max(largest, bucket.full_bytes());
    }
    const auto& buckets = strategy.buckets();  // the root, then layer after layer
    const std::int64_t root = buckets.front().full_bytes();
    const std::int64_t to_come = buckets[1].shard_bytes() + buckets[2].shard_bytes();
    memory::reset_peaks();
    trainer.step({toy.batch(communicator.rank(), 1)});
    const std::int64_t beside = memory::snapshot().states_peak - rest;
    EXPECT_LE(beside, 4 * largest + 2 * root - to_come);
    EXPECT_GT(beside, 2 * largest);
  });
}

TEST(Overlap, KnowsTheOrderAfterOneStepAndCopesWithAnother) {
  on_ranks(2, [](dist::Communicator& communicator) {
    Toy toy;
    Overlap strategy({*toy.model, communicator, optim::adamw(), &toy.values, ""}, OverlapOptions{});
    train::Trainer trainer(strategy);
    {
      const c10::NoGradGuard no_grad;  // an evaluation is no step to learn from
      strategy.forward(toy.batch(communicator.rank(), 0));
    }
    EXPECT_FALSE(strategy.knows_order());
    trainer.step({toy.batch(communicator.rank(), 0)});
    EXPECT_TRUE(strategy.knows_order());
    trainer.step({toy.batch(communicator.rank(), 1)});
    trainer.evaluate({toy.batch(communicator.rank(), 2)});
    EXPECT_EQ(strategy.passes_that_differed(), 0);
    // Two forwards before one backward: that backward has twice as many units.
    const at::Tensor one = strategy.forward(toy.batch(communicator.rank(), 2));
    const at::Tensor two = strategy.forward(toy.batch(communicator.rank(), 3));
    strategy.zero_grad();
    strategy.backward(one + two);
    strategy.finish_backward();
    EXPECT_EQ(strategy.passes_that_differed(), 1);
    strategy.optimizer_step();
    strategy.sync_parameters();
    trainer.step({toy.batch(communicator.rank(), 4)});
    EXPECT_EQ(strategy.passes_that_differed(), 1);
  });
}

TEST(Overlap, FindsALookaheadOutThatIsTheSameOnAllRanks) {
  on_ranks(3, [](dist::Communicator& communicator) {
    Medium toy;
    Overlap strategy({*toy.model, communicator, optim::adamw(), &toy.values, ""},
                     {.lookahead = kAutoLookahead});
    train::Trainer trainer(strategy);
    for (int s = 0; s < 3; ++s) {
      EXPECT_EQ(strategy.lookahead(), 0);  // timed on demand
      trainer.step({toy.batch(communicator.rank(), s)});
    }
    // Whatever this machine makes of it.
    const std::int64_t found = strategy.lookahead();
    EXPECT_LE(found, static_cast<std::int64_t>(strategy.list().units.size()));
    communicator.agree("the lookahead", std::to_string(found));
    expect_equal(trained(communicator, {.lookahead = kAutoLookahead}, 5),
                 trained(communicator, {.lookahead = 0}, 5), "auto");
    // No room for a unit ahead: on demand for ever.
    Medium other;
    Overlap narrow({*other.model, communicator, optim::adamw(), &other.values, ""},
                   {.lookahead = kAutoLookahead, .ahead_bytes = 1000});
    train::Trainer second(narrow);
    for (int s = 0; s < 4; ++s) second.step({other.batch(communicator.rank(), s)});
    EXPECT_EQ(narrow.lookahead(), 0);
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
        const train::WholeParameters whole(strategy, u);
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

TEST(Overlap, KeepsSmallUnitsWholeIfAskedTo) {
  on_ranks(2, [](dist::Communicator& communicator) {
    Medium toy;
    OverlapOptions options;
    options.whole_below = 10000;  // of the units only the last, 257 x 9 and 9
    Overlap strategy({*toy.model, communicator, optim::adamw(), &toy.values, ""}, options);
    std::size_t whole = 0;
    for (const Bucket& bucket : strategy.buckets()) whole += bucket.whole() ? 1 : 0;
    EXPECT_GE(whole, 1u);
    EXPECT_LT(whole, strategy.buckets().size());
    EXPECT_EQ(memory::snapshot()[Category::kParameters], strategy.predicted_bytes().parameters);
    OverlapOptions none;
    none.whole_below = 0;
    expect_equal(trained(communicator, {.whole_below = 300}, 3), trained(communicator, none, 3),
                 "hybrid");
  });
}

TEST(Overlap, RefusesOptionsThatCannotBe) {
  on_ranks(2, [](dist::Communicator& communicator) {
    Toy toy;
    const auto refuses = [&](OverlapOptions options) {
      try {
        Overlap({*toy.model, communicator, optim::adamw(), &toy.values, ""}, options);
      } catch (const Error& error) {
        return std::string(error.what());
      }
      return std::string("no error");
    };
    EXPECT_EQ(refuses({.stage = 4}), "stage is 4; there are 0, 1, 2 and 3");
    EXPECT_THAT(refuses({.bucket_bytes = 0}), ::testing::HasSubstr("the size of a bucket is 0"));
    EXPECT_THAT(refuses({.lookahead = -2}), ::testing::HasSubstr("lookahead is -2"));
    const std::string differing = refuses({.lookahead = communicator.rank()});
    EXPECT_THAT(differing, ::testing::HasSubstr("the engine's options"));
    EXPECT_THAT(differing, ::testing::HasSubstr("lookahead"));
  });
}

}  // namespace
}  // namespace zero
