// hpZ: what a rank holds, when it gathers from all ranks, and what it sends. That the numbers are
// those of chapter 00 is tested in zero_plus_plus_test.cpp.
#include "secondary_shard.hpp"

#include <gtest/gtest.h>

#include <tests/support/states.hpp>
#include <tests/support/whole_weights.hpp>
#include <tests/support/zero_plus_plus_run.hpp>

namespace zero {
namespace {

using dist::Purpose;
using memory::Category;
using testing::forward_batch;
using testing::inside_hosts;
using testing::on_hosts;
using testing::Shape;
using testing::shards_of;
using testing::ZeroPlusPlusRun;

const ZeroPlusPlusOptions kByHost = {.secondary_shards = true};

class HpzOnMesh : public ::testing::TestWithParam<Shape> {};
INSTANTIATE_TEST_SUITE_P(Meshes, HpzOnMesh,
                         ::testing::Values(Shape{1, 2}, Shape{2, 1}, Shape{2, 2}, Shape{3, 2},
                                           Shape{2, 3}, Shape{3, 1}),
                         testing::name_of_shape);

TEST_P(HpzOnMesh, HoldsAShardOfAllRanksAndOneOfTheGroup) {
  const Shape shape = GetParam();
  on_hosts(shape, [&](dist::Communicator& communicator) {
    ZeroPlusPlusRun<> run(communicator, kByHost);
    const std::int64_t shards = shards_of(run.strategy);
    const std::int64_t second = shape.replicas == 1 ? 0 : shape.replicas * shards;
    const auto expect_rest = [&] {
      EXPECT_EQ(run.held(Category::kParameters), shards + second);
      EXPECT_EQ(run.strategy.costs().at_rest.parameters, shards + second);
    };
    expect_rest();
    run.step(0);
    expect_rest();
    EXPECT_EQ(testing::text_of(testing::states_since(run.before)),
              testing::text_of(run.strategy.costs().at_rest));
    run.trainer.evaluate({run.batch(1)});
    expect_rest();
  });
}

TEST_P(HpzOnMesh, SendsInsideAndBetweenWhatTheFormulasSay) {
  const Shape shape = GetParam();
  on_hosts(shape, [&](dist::Communicator& communicator) {
    ZeroPlusPlusRun<> run(communicator, kByHost);
    run.step(0);
    const std::int64_t shards = shards_of(run.strategy);
    const std::int64_t again = shards_of(run.strategy, /*with_root=*/false);
    const dist::Traffic sent = run.step(1);
    EXPECT_EQ(sent.between_hosts(Purpose::kParameter), shape.outside() * shards);
    EXPECT_EQ(inside_hosts(sent, Purpose::kParameter),
              (shape.shards - 1) * (shards + shape.replicas * again));
    EXPECT_EQ(sent.between_hosts(Purpose::kGradient), shape.outside() * shards);
    EXPECT_EQ(inside_hosts(sent, Purpose::kGradient), (shape.shards - 1) * shards);
    const train::Costs costs = run.strategy.costs();
    EXPECT_EQ(costs.sent, testing::training_bytes(sent));
    EXPECT_EQ(costs.sent_between_groups, 2 * shape.outside() * shards);
    // By axis: a rank sends nothing to those with its place in other groups alone.
    if (shape.replicas > 1 && shape.shards > 1) {
      EXPECT_EQ(run.strategy.mesh().along("replica").traffic().bytes(), 0);
      EXPECT_GT(run.strategy.mesh().along("shard").traffic().bytes(Purpose::kParameter), 0);
    }
  });
}

// New weights come from all ranks, once; whatever else gathers takes the secondary shard.
TEST_P(HpzOnMesh, GathersNewWeightsFromAllRanksOnce) {
  const Shape shape = GetParam();
  if (shape.replicas == 1) return;
  on_hosts(shape, [&](dist::Communicator& communicator) {
    ZeroPlusPlusRun<> run(communicator, kByHost);
    train::Strategy& strategy = run.strategy;
    const std::int64_t once = shape.outside() * shards_of(run.strategy);
    const auto expect_between = [&](const char* what, std::int64_t bytes,
                                    const std::function<void()>& work) {
      EXPECT_EQ(run.sent_in(work).between_hosts(Purpose::kParameter), bytes) << what;
    };
    const auto evaluate = [&] { run.trainer.evaluate({run.batch(7), run.batch(8)}); };
    at::Tensor loss;
    expect_between("first weights, for an evaluation", once, evaluate);
    expect_between("the same for a forward", 0,
                   [&] { loss = forward_batch(strategy, run.batch(0)); });
    expect_between("backward", 0, [&] { strategy.backward(loss); });
    loss.reset();
    strategy.finish_backward();
    expect_between("before the update", 0, evaluate);
    strategy.zero_grad();  // the step is skipped: the weights are as they were
    expect_between("after a skipped step", 0,
                   [&] { loss = forward_batch(strategy, run.batch(1)); });
    strategy.backward(loss);
    loss.reset();
    testing::finish_step(strategy);
    strategy.zero_grad();
    expect_between("after an update", once, [&] { loss = forward_batch(strategy, run.batch(2)); });
    expect_between("backward", 0, [&] { strategy.backward(loss); });
    loss.reset();
    testing::finish_step(strategy);
    expect_between("reading after an update", once, [&] { testing::whole_weights(strategy); });
    expect_between("reading again", 0, [&] { testing::whole_weights(strategy); });
    expect_between("three micro-batches", 0, [&] {
      run.trainer.step({run.batch(3), run.batch(4), run.batch(5)});
    });
    expect_between("three micro-batches of new weights", once, [&] {
      run.trainer.step({run.batch(3), run.batch(4), run.batch(5)});
    });
    testing::whole_weights(strategy);
    const std::int64_t by_formula = strategy.costs().sent;
    EXPECT_EQ(by_formula, testing::training_bytes(run.step(3))) << "after a reading";
    EXPECT_LT(by_formula, strategy.costs().sent) << "after an update";
  });
}

TEST(Hpz, SendsNothingOfAUnitThatIsNotUsed) {
  on_hosts({2, 2}, [](dist::Communicator& communicator) {
    const dist::Mesh mesh = dist::Mesh(communicator).with_shards(2);
    const SecondaryShard shard(
        std::make_unique<train::AllGather>(mesh.world(), /*shard_bytes=*/400, /*ranks_outside=*/2),
        mesh.along("shard"), /*elements=*/400, at::kFloat, [] { return std::int64_t{0}; });
    EXPECT_EQ(shard.sent(0).all, 0);
    EXPECT_EQ(shard.sent(0).between_groups, 0);
    EXPECT_EQ(shard.sent(3).all, 3 * 400 + 2 * 800);
    EXPECT_EQ(shard.sent(3).between_groups, 2 * 400);
  });
}

}  // namespace
}  // namespace zero
