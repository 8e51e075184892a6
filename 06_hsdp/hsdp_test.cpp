// Exact bytes that a rank holds and sends under HSDP, and when it sends them. R is the number of
// groups (replicas), S their size. hsdp_parity_test.cpp compares the weights with chapter 00.
#include "hsdp.hpp"

#include <ATen/ops/equal.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <random>
#include <thread>

#include <tests/support/ranks.hpp>
#include <tests/support/states.hpp>
#include <tests/support/toy_run.hpp>
#include <tests/support/whole_weights.hpp>

namespace zero {
namespace {

using dist::Purpose;
using memory::Category;
using testing::forward_batch;
using testing::on_ranks;
using testing::Toy;

// Every layer can be cut into 2 or 4 shards without padding, so that the formulas have no
// remainder.
struct Even : Toy {
  Even() : Toy(tools::MlpConfig{.inputs = 256, .hidden = {256, 256}, .outputs = 256}) {}
};

struct HsdpOptions {
  ShardingOptions overlap = {};
  std::int64_t shard_size;
};

template <class Model>
struct HsdpRun : testing::ToyRun<ShardedDataParallel, Model> {
  HsdpRun(dist::Communicator& communicator, const HsdpOptions& options)
      : testing::ToyRun<ShardedDataParallel, Model>(communicator, [&](const auto& arguments) {
          return make_hsdp(arguments, options.overlap, options.shard_size);
        }) {}
  dist::Communicator& replicas() const { return this->strategy.mesh().along("replica"); }
};

struct Shape {
  int replicas;
  int shards;
};

class HsdpOnMesh : public ::testing::TestWithParam<Shape> {};
INSTANTIATE_TEST_SUITE_P(Meshes, HsdpOnMesh,
                         ::testing::Values(Shape{1, 2}, Shape{2, 1}, Shape{2, 2}, Shape{3, 2},
                                           Shape{2, 4}),
                         [](const auto& info) {
                           return fmt::format("R{}S{}", info.param.replicas, info.param.shards);
                         });

// Runs `body` with each stage on the ranks of the mesh.
void on_stages(const Shape& shape,
               const std::function<void(dist::Communicator&, const HsdpOptions&)>& body) {
  on_ranks(shape.replicas * shape.shards, [&](dist::Communicator& communicator) {
    for (const int stage : {1, 2, 3}) {
      SCOPED_TRACE(fmt::format("stage {}", stage));
      body(communicator, {{.stage = stage}, shape.shards});
    }
  });
}

TEST_P(HsdpOnMesh, HoldsWhatTheStageHoldsOnSRanks) {
  on_stages(GetParam(), [](dist::Communicator& communicator, const HsdpOptions& options) {
    HsdpRun<Even> run(communicator, options);
    run.step(0);
    const std::int64_t v = run.strategy.list().bytes(), s = options.shard_size;
    EXPECT_EQ(run.held(Category::kParameters), options.overlap.stage == 3 ? v / s : v);
    EXPECT_EQ(run.held(Category::kGradients), options.overlap.stage >= 2 ? v / s : v);
    EXPECT_EQ(run.held(Category::kOptimizer), 2 * v / s);
    EXPECT_EQ(run.strategy.costs().at_rest.total(), run.held(Category::kParameters) +
                                                        run.held(Category::kGradients) +
                                                        run.held(Category::kOptimizer));
  });
}

TEST_P(HsdpOnMesh, SendsByAxisWhatTheFormulasSay) {
  on_stages(GetParam(), [](dist::Communicator& communicator, const HsdpOptions& options) {
    HsdpRun<Even> run(communicator, options);
    run.step(0);
    dist::Communicator& shards = *run.strategy.placements().group;
    dist::Communicator& replicas = run.replicas();
    const dist::Traffic inside = shards.traffic(), between = replicas.traffic();
    const dist::Traffic all = run.step(1);
    const dist::Traffic sent_inside = shards.traffic().since(inside);
    const dist::Traffic sent_between = replicas.traffic().since(between);

    const std::int64_t v = run.strategy.list().bytes(), s = options.shard_size;
    // After the update; at stage 3 for forward and for backward, but the root is not resharded
    // between the two.
    std::int64_t gathered = v;
    for (std::size_t u = 1; options.overlap.stage == 3 && u < run.strategy.list().units.size();
         ++u) {
      for (const std::size_t i : run.strategy.list().units[u].parameters) {
        gathered += run.strategy.list().parameters[i].bytes();
      }
    }
    EXPECT_EQ(sent_inside.bytes(Purpose::kParameter), gathered / s * (s - 1));
    EXPECT_EQ(sent_inside.bytes(Purpose::kGradient), v / s * (s - 1));
    EXPECT_EQ(sent_between.bytes(Purpose::kParameter), 0);
    std::int64_t all_reduced = 0;
    for (const train::FlatParameters& bucket : run.strategy.buckets()) {
      all_reduced +=
          dist::all_reduce_bytes(bucket.layout().shard(), 4, replicas.rank(), replicas.size());
    }
    EXPECT_EQ(sent_between.bytes(Purpose::kGradient), all_reduced);
    // 2 (V/S) (R-1)/R; three replicas cannot cut every bucket into equal pieces.
    if (const std::int64_t r = replicas.size(); r != 3) {
      EXPECT_EQ(all_reduced, 2 * (v / s) * (r - 1) / r);
    }
    EXPECT_EQ(testing::training_bytes(all), run.strategy.costs().sent);
    EXPECT_EQ(testing::training_bytes(all),
              testing::training_bytes(sent_inside) + testing::training_bytes(sent_between));
  });
}

struct PartlyFrozen : Toy {
  PartlyFrozen() { model->parameters().front().requires_grad_(false); }
};

TEST_P(HsdpOnMesh, SendsNoGradientsOfWhatIsFrozen) {
  on_stages(GetParam(), [](dist::Communicator& communicator, const HsdpOptions& options) {
    HsdpRun<PartlyFrozen> run(communicator, options);
    run.step(0);
    EXPECT_EQ(testing::training_bytes(run.step(1)), run.strategy.costs().sent);
  });
}

// Evaluation sends nothing between groups. With S = 1 the replica group has all ranks, and only
// control messages use it.
TEST_P(HsdpOnMesh, EvaluatesInsideTheGroups) {
  on_stages(GetParam(), [](dist::Communicator& communicator, const HsdpOptions& options) {
    HsdpRun<Even> run(communicator, options);
    run.step(0);
    const dist::Traffic before = run.replicas().traffic();
    const double once = run.trainer.evaluate({run.batch(7)});
    EXPECT_EQ(run.trainer.evaluate({run.batch(7)}), once);
    const dist::Traffic sent = run.replicas().traffic().since(before);
    if (run.replicas().size() < communicator.size()) {
      EXPECT_EQ(sent.bytes(), 0);
    }
    EXPECT_EQ(testing::training_bytes(sent), 0);
  });
}

TEST(Hsdp, StartsTheSumsBetweenGroupsInBackward) {
  on_ranks(4, [](dist::Communicator& communicator) {
    // A bucket's reduce-scatter starts only after the previous one has finished and its all-reduce
    // has started. So the all-reduce of the last bucket starts in finish_backward().
    HsdpRun<Even> run(communicator, {{.stage = 2}, 2});
    const auto started = [&] { return run.replicas().traffic().calls(Purpose::kGradient); };
    const auto buckets = static_cast<std::int64_t>(run.strategy.buckets().size());
    ASSERT_GE(buckets, 3);
    run.strategy.backward(forward_batch(run.strategy, run.batch(0)));
    EXPECT_EQ(started(), buckets - 1);
    run.strategy.finish_backward();
    EXPECT_EQ(started(), buckets);
    run.strategy.zero_grad();
  });
}

// Ranks wait for each other in the shard group and in the replica group at the same time. Only
// lateness shows a read that does not wait.
TEST(Hsdp, RandomDelaysChangeNothing) {
  on_ranks(4, [](dist::Communicator& communicator) {
    for (int seed = 0; seed < 6; ++seed) {
      const HsdpOptions options = {.overlap = {.stage = 1 + seed % 3,
                                               .bucket_bytes = 1 << (6 + seed),
                                               .in_flight_bytes = 1 << (6 + 2 * seed),
                                               .lookahead = seed % 4},
                                   .shard_size = 2};
      std::minstd_rand draw(static_cast<unsigned>(97 * seed + communicator.rank() + 1));
      const auto trained = [&](bool late) {
        HsdpRun<Toy> run(communicator, options);
        run.strategy.passes().observe_gradients([&](std::size_t, const at::Tensor&) {
          // Ranks drift apart; no result may depend on it.
          if (late) std::this_thread::sleep_for(std::chrono::microseconds(draw() % 3000));
        });
        for (int s = 0; s < 3; ++s) run.step(s);
        return testing::whole_weights(run.strategy);
      };
      const auto expected = trained(false), found = trained(true);
      for (std::size_t i = 0; i < expected.size(); ++i) {
        EXPECT_TRUE(at::equal(found[i], expected[i])) << "seed " << seed << ", " << i;
      }
    }
  });
}

// zero_grad() while gradients are in flight, for example after an exception in user code.
TEST(Hsdp, GradientsCanBeDroppedWhileTheyTravel) {
  on_ranks(4, [](dist::Communicator& communicator) {
    const HsdpOptions options{{.stage = 3}, 2};
    HsdpRun<Toy> run(communicator, options), plain(communicator, options);
    run.strategy.backward(forward_batch(run.strategy, run.batch(5)));
    run.strategy.zero_grad();
    for (int s = 0; s < 2; ++s) {
      run.step(s);
      plain.step(s);
    }
    const auto a = testing::whole_weights(run.strategy);
    const auto b = testing::whole_weights(plain.strategy);
    for (std::size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(at::equal(a[i], b[i])) << i;
  });
  on_ranks(4, [](dist::Communicator& communicator) {
    // The strategy is destroyed while gradients are in flight.
    HsdpRun<Toy> run(communicator, {{.stage = 3}, 2});
    run.strategy.backward(forward_batch(run.strategy, run.batch(5)));
  });
}

}  // namespace
}  // namespace zero
