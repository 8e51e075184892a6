#include "overlap.hpp"

#include <gmock/gmock.h>

#include <random>
#include <set>
#include <thread>

#include <tests/support/hooked_communicator.hpp>
#include <tests/support/ranks.hpp>
#include <tests/support/toy.hpp>
#include <zero/base/error.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/memory/storage.hpp>
#include <zero/optim/adamw.hpp>
#include <zero/train/trainer.hpp>

#include "test_runs.hpp"

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
    Medium other;
    const OverlapOptions roomy;
    const Overlap whole({*other.model, communicator, optim::adamw(), &other.values, ""}, roomy);
    EXPECT_EQ(whole.buckets().size(), whole.list().units.size());
    // As large as the largest of them is enough.
    OverlapOptions exact;
    exact.bucket_bytes = 0;
    for (const train::FlatParameters& bucket : whole.buckets()) {
      exact.bucket_bytes = std::max(exact.bucket_bytes, bucket.bytes());
    }
    Medium third;
    const Overlap fits({*third.model, communicator, optim::adamw(), &third.values, ""}, exact);
    EXPECT_EQ(fits.buckets().size(), fits.list().units.size());
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
    communicator.verify_same_on_all_ranks("the lookahead", std::to_string(found));
    expect_equal(trained(communicator, {.lookahead = kAutoLookahead}, 5),
                 trained(communicator, {.lookahead = 0}, 5), "auto");
    // A byte too little for the largest unit, whole: on demand for good.
    std::int64_t largest = 0;
    for (std::size_t b = 1; b < strategy.buckets().size(); ++b) {
      largest = std::max(largest, strategy.buckets()[b].full_bytes());
    }
    Medium other;
    Overlap narrow({*other.model, communicator, optim::adamw(), &other.values, ""},
                   {.lookahead = kAutoLookahead, .ahead_bytes = largest - 1});
    train::Trainer second(narrow);
    for (int s = 0; s < 4; ++s) second.step({other.batch(communicator.rank(), s)});
    EXPECT_EQ(narrow.lookahead(), 0);
  });
}

// A caller that reads or writes what rests on a rank, such as a checkpoint, while updated
// parameters are gathered.
TEST(Overlap, LocalShardsHaveTheirValuesWhileParametersAreGathered) {
  on_ranks(2, [](dist::Communicator& communicator) {
    for (const int stage : {1, 2}) {
      Toy toy, other;
      Overlap deferring({*toy.model, communicator, optim::adamw(), &toy.values, ""},
                        {.stage = stage, .defer_parameter_gather = true});
      Overlap plain({*other.model, communicator, optim::adamw(), &other.values, ""},
                    {.stage = stage});
      train::Trainer plain_trainer(plain), trainer(deferring);
      plain_trainer.step({other.batch(communicator.rank(), 0)});
      trainer.step({toy.batch(communicator.rank(), 0)});  // the last to wait for anything
      for (std::size_t i = 0; i < plain.list().size(); ++i) {
        EXPECT_TRUE(at::equal(memory::raw(deferring.local_shard(i).tensor),
                              memory::raw(plain.local_shard(i).tensor)))
            << "stage " << stage << ", parameter " << i;
      }
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
    for (const train::FlatParameters& bucket : strategy.buckets())
      whole += bucket.is_whole() ? 1 : 0;
    EXPECT_GE(whole, 1u);
    EXPECT_LT(whole, strategy.buckets().size());
    EXPECT_EQ(memory::snapshot()[Category::kParameters], strategy.predicted_bytes().parameters);
    // A unit of exactly so many elements is not below it.
    options.whole_below = 257 * 9 + 9;
    Medium other;
    const Overlap at_limit({*other.model, communicator, optim::adamw(), &other.values, ""},
                           options);
    EXPECT_FALSE(at_limit.buckets().front().is_whole());
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
