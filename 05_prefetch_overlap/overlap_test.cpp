#include "overlap.hpp"

#include <c10/core/GradMode.h>
#include <gmock/gmock.h>

#include <harness.hpp>
#include <random>
#include <set>
#include <thread>
#include <zero/error.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/train/trainer.hpp>

#include "engine.hpp"
#include "hooked_communicator.hpp"
#include "toy.hpp"

namespace zero {
namespace {

using memory::Category;
using testing::HookedCommunicator;
using testing::on_ranks;
using testing::Toy;

// Large enough for bytes to say something: five units of 260 KiB.
struct Medium : Toy {
  Medium() {
    const nn::DeferredStorage deferred;
    nn::MlpConfig config;
    config.inputs = 63;
    config.hidden = {257, 255, 251, 253, 257};
    config.outputs = 9;
    model = std::make_shared<nn::Mlp>(config);
  }
};

OverlapOptions small_buckets(int stage) {
  OverlapOptions options;
  options.stage = stage;
  options.bucket_bytes = 1 << 10;  // of the toy's: several in a unit
  options.in_flight_bytes = 2 << 10;
  return options;
}

// Whole weights after `steps` steps.
std::vector<at::Tensor> trained(dist::Communicator& communicator, const OverlapOptions& options,
                                int steps) {
  Toy toy;
  Overlap strategy({*toy.model, communicator, optim::adamw(), &toy.values, ""}, options);
  train::Trainer trainer(strategy);
  for (int s = 0; s < steps; ++s) trainer.step({toy.batch(communicator.rank(), s)});
  std::vector<at::Tensor> weights(strategy.list().size());
  for (std::size_t u = 0; u < strategy.list().units.size(); ++u) {
    const train::WholeParameters whole(strategy, u);
    for (const std::size_t i : strategy.list().units[u].parameters) {
      weights[i] = strategy.list().parameters[i].tensor.detach().clone();
    }
  }
  return weights;
}

void expect_equal(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b,
                  const std::string& what) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i)
    EXPECT_TRUE(at::equal(a[i], b[i])) << what << ", " << i;
}

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
        HookedCommunicator late(communicator, [&](dist::Operation, dist::Purpose, bool) {
          std::this_thread::sleep_for(std::chrono::microseconds(draw() % 400));
        });
        OverlapOptions options = small_buckets(stage);
        options.lookahead = seed % 4;
        options.in_flight_bytes = 1 << (8 + seed % 8);
        expect_equal(trained(late, options, 3), expected,
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
    EXPECT_THAT(refuses({.lookahead = -1}), ::testing::HasSubstr("lookahead is -1"));
    const std::string differing = refuses({.lookahead = communicator.rank()});
    EXPECT_THAT(differing, ::testing::HasSubstr("the engine's options"));
    EXPECT_THAT(differing, ::testing::HasSubstr("lookahead"));
  });
}

TEST(Engine, TrainsAsTheTrainerDoes) {
  on_ranks(2, [](dist::Communicator& communicator) {
    for (const int stage : {0, 1, 2, 3}) {
      Toy toy;
      Engine engine(*toy.model, communicator, optim::adamw(), {.overlap = {.stage = stage}},
                    &toy.values);
      for (int s = 0; s < 3; ++s) {
        engine.backward(engine.forward(toy.batch(communicator.rank(), s)));
        EXPECT_TRUE(engine.step());
      }
      EXPECT_EQ(engine.steps(), 3);
      const std::vector<at::Tensor> expected = trained(communicator, {.stage = stage}, 3);
      train::Strategy& strategy = engine.strategy();
      for (std::size_t u = 0; u < strategy.list().units.size(); ++u) {
        const train::WholeParameters whole(strategy, u);
        for (const std::size_t i : strategy.list().units[u].parameters) {
          EXPECT_TRUE(at::equal(strategy.list().parameters[i].tensor, expected[i]))
              << "stage " << stage << ", " << strategy.list().parameters[i].name;
        }
      }
    }
  });
}

TEST(Engine, UpdatesAfterTheLastMicroBatchAndClips) {
  on_ranks(2, [](dist::Communicator& communicator) {
    Toy toy;
    Engine engine(*toy.model, communicator, optim::adamw(),
                  {.overlap = {.stage = 2}, .accumulation_steps = 3, .clip_norm = 1e-3},
                  &toy.values);
    for (int s = 0; s < 6; ++s) {
      engine.backward(engine.forward(toy.batch(communicator.rank(), s)));
      EXPECT_EQ(engine.step(), s % 3 == 2);
    }
    EXPECT_EQ(engine.steps(), 2);
    EXPECT_GT(engine.gradient_norm(), 1e-3F);
  });
}

TEST(Engine, RefusesCallsInTheWrongOrder) {
  on_ranks(2, [](dist::Communicator& communicator) {
    Toy toy;
    Toy other;
    EngineConfig config;
    config.accumulation_steps = 0;
    EXPECT_THROW(Engine(*other.model, communicator, optim::adamw(), config, &other.values), Error);
    Engine engine(*toy.model, communicator, optim::adamw(), {}, &toy.values);
    EXPECT_THROW(engine.step(), Error);
    engine.backward(engine.forward(toy.batch(communicator.rank(), 0)));
    const at::Tensor again = engine.forward(toy.batch(communicator.rank(), 1));
    EXPECT_THROW(engine.backward(again), Error);
    EXPECT_TRUE(engine.step());
  });
}

}  // namespace
}  // namespace zero
