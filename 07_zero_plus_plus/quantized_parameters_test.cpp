// qwZ: which values ranks compute with, what a rank holds, and what it sends.
#include "quantized_parameters.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <tests/support/same_bits.hpp>
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
using testing::packed_bytes;
using testing::Shape;
using testing::shards_of;
using testing::sum_over_buffers;
using testing::ZeroPlusPlusRun;

std::int64_t packed_shards_of(const ShardedDataParallel& strategy, bool with_root = true) {
  return sum_over_buffers(
      strategy, [](const auto& buffer) { return packed_bytes(buffer.layout(), 8); }, with_root);
}

// Copies what it computes with: parameters of a unit before its forward and its backward.
struct Watched final : ShardedDataParallel {
  Watched(const train::StrategyArguments& groups, const ZeroPlusPlusOptions& options)
      : ShardedDataParallel(groups, {}, zero_plus_plus_transfers(groups.mesh, options)) {}
  void gather(std::size_t unit, train::Gather why) override {
    ShardedDataParallel::gather(unit, why);
    if (why == train::Gather::kForward) copy(unit, in_forward);
    if (why == train::Gather::kBackward) copy(unit, in_backward);
  }
  void copy(std::size_t unit, std::vector<at::Tensor>& to) {
    to.resize(count());
    for (const std::size_t i : list().units[unit].parameters) {
      to[i] = memory::raw(parameter(i)).clone();
    }
  }
  std::vector<at::Tensor> in_forward, in_backward;
};
struct WatchedRun : testing::ToyRun<Watched, testing::Odd> {
  WatchedRun(dist::Communicator& communicator, const ZeroPlusPlusOptions& options)
      : ToyRun(communicator, [&](const train::StrategyArguments& arguments) {
          return std::make_unique<Watched>(arguments.with_shards(options.group_size), options);
        }) {}
};

class QwzOnMesh : public ::testing::TestWithParam<Shape> {};
INSTANTIATE_TEST_SUITE_P(Meshes, QwzOnMesh,
                         ::testing::Values(Shape{1, 2}, Shape{2, 1}, Shape{2, 2}, Shape{3, 2}),
                         testing::name_of_shape);

// Runs `body` without and with secondary shards.
void on_options(const Shape& shape,
                const std::function<void(dist::Communicator&, const ZeroPlusPlusOptions&)>& body) {
  on_hosts(shape, [&](dist::Communicator& communicator) {
    for (const bool secondary : {false, true}) {
      SCOPED_TRACE(secondary ? "with hpZ" : "alone");
      body(communicator, {.secondary_shards = secondary, .quantize_parameters = true});
    }
  });
}

// Every value is within half a step of its block, and somewhere it is another one.
void expect_rounded(const std::vector<at::Tensor>& found, const std::vector<at::Tensor>& weights,
                    const ShardedDataParallel& strategy) {
  constexpr std::int64_t kBlock = 2048;
  std::int64_t differ = 0;
  for (const train::FlatParameters& buffer : strategy.buckets()) {
    for (std::size_t m = 0; m < buffer.members().size(); ++m) {
      const at::Tensor a = found[buffer.members()[m]].flatten();
      const at::Tensor b = weights[buffer.members()[m]].flatten();
      for (int rank = 0; rank < buffer.layout().world_size(); ++rank) {
        const auto part = buffer.layout().range(m, rank);
        for (std::int64_t at = 0; at < part.size; at += kBlock) {
          const std::int64_t size = std::min(kBlock, part.size - at);
          const at::Tensor original = b.narrow(0, part.begin + at, size);
          const at::Tensor error = (a.narrow(0, part.begin + at, size) - original).abs();
          const auto step = original.abs().max().item<float>() / 127;
          EXPECT_LE(error.max().item<float>(), 0.5001 * step);
          differ += error.count_nonzero().item<std::int64_t>();
        }
      }
    }
  }
  EXPECT_GT(differ, 0);
}

TEST_P(QwzOnMesh, ComputesWithTheSameBitsOnAllRanks) {
  on_options(GetParam(), [](dist::Communicator& communicator, const ZeroPlusPlusOptions& options) {
    WatchedRun run(communicator, options);
    for (int s = 0; s < 2; ++s) {
      const std::vector<at::Tensor> weights = testing::whole_weights(run.strategy);
      run.step(s);
      expect_rounded(run.strategy.in_forward, weights, run.strategy);
      // A second gather, or a gather of the secondary shards, brings them again.
      EXPECT_TRUE(testing::same_bits(run.strategy.in_backward, run.strategy.in_forward));
      for (const at::Tensor& tensor : run.strategy.in_forward) {
        EXPECT_TRUE(testing::is_the_same_on_all_ranks(communicator, tensor));
      }
    }
  });
}

// Reads, updates and checkpoints are of the weights themselves.
TEST_P(QwzOnMesh, NeverRoundsTheWeightsThatAreUpdated) {
  on_options(GetParam(), [](dist::Communicator& communicator, const ZeroPlusPlusOptions& options) {
    const testing::Odd alone = [] {
      testing::Odd odd;
      nn::initialize_parameters(*odd.model, odd.values);
      return odd;
    }();
    WatchedRun run(communicator, options);
    const auto first = testing::parameters_of(*alone.model);
    at::Tensor loss =
        forward_batch(run.strategy, run.batch(0));  // the root stays whole: it is rounded
    EXPECT_TRUE(testing::same_bits(testing::whole_weights(run.strategy), first));
    run.strategy.backward(loss);
    loss.reset();
    run.strategy.finish_backward();
    EXPECT_TRUE(testing::same_bits(testing::whole_weights(run.strategy), first));
    run.strategy.zero_grad();
    // Updates of a hundredth of a step of a block, which would be lost in rounded weights.
    run.strategy.optimizer().set_learning_rate(1e-5);
    for (int s = 0; s < 3; ++s) run.step(s);
    const auto later = testing::whole_weights(run.strategy);
    for (std::size_t i = 0; i < later.size(); ++i) {
      const at::Tensor moved = (later[i] - first[i]).abs();
      EXPECT_GT(moved.count_nonzero().item<std::int64_t>(), moved.numel() * 9 / 10);
      EXPECT_LT(moved.max().item<float>(), 4e-5);
    }
    run.strategy.release();
    EXPECT_TRUE(testing::same_bits(testing::parameters_of(*run.toy.model), later));
  });
}

TEST_P(QwzOnMesh, SendsInsideAndBetweenWhatTheFormulasSay) {
  const Shape shape = GetParam();
  on_options(shape, [&](dist::Communicator& communicator, const ZeroPlusPlusOptions& options) {
    ZeroPlusPlusRun<> run(communicator, options);
    run.step(0);
    const std::int64_t once = packed_shards_of(run.strategy), shards = shards_of(run.strategy);
    const std::int64_t again = packed_shards_of(run.strategy, /*with_root=*/false);
    const dist::Traffic sent = run.step(1);
    // The second gather is like the first, or of R packed shards from each rank of the group.
    const bool from_group = options.secondary_shards && shape.replicas > 1;
    const std::int64_t between = shape.outside() * (once + (from_group ? 0 : again));
    EXPECT_EQ(sent.between_hosts(Purpose::kParameter), between);
    EXPECT_EQ(inside_hosts(sent, Purpose::kParameter),
              (shape.shards - 1) * (once + (from_group ? shape.replicas : 1) * again));
    EXPECT_EQ(sent.between_hosts(Purpose::kGradient), shape.outside() * shards);
    EXPECT_EQ(run.strategy.costs().sent, testing::training_bytes(sent));
    EXPECT_EQ(run.strategy.costs().sent_between_groups, between + shape.outside() * shards);
  });
}

// With hpZ the secondary shard is a quarter of one in float32, and scales.
TEST_P(QwzOnMesh, HoldsASecondaryShardOfPackedBytes) {
  const Shape shape = GetParam();
  on_options(shape, [&](dist::Communicator& communicator, const ZeroPlusPlusOptions& options) {
    ZeroPlusPlusRun<> run(communicator, options);
    const bool has_second = options.secondary_shards && shape.replicas > 1;
    const std::int64_t expected =
        shards_of(run.strategy) +
        (has_second ? shape.replicas * packed_shards_of(run.strategy) : 0);
    const std::int64_t of_groups = run.held(Category::kCommunication);  // their transports
    const auto expect_rest = [&] {
      EXPECT_EQ(run.held(Category::kParameters), expected);
      EXPECT_EQ(run.strategy.costs().at_rest.parameters, expected);
      EXPECT_EQ(run.held(Category::kCommunication), of_groups);
    };
    expect_rest();
    run.step(0);
    expect_rest();
    run.trainer.evaluate({run.batch(1)});
    expect_rest();
    testing::whole_weights(run.strategy);
    expect_rest();
  });
}

// While a unit is gathered there are the packed shards of all ranks and, for peers to read, this
// rank's. That of the root may still be there.
TEST_P(QwzOnMesh, HasThePackedBytesOfOneUnitBesideIt) {
  const Shape shape = GetParam();
  on_hosts(shape, [&](dist::Communicator& communicator) {
    ZeroPlusPlusRun<> run(communicator, {.quantize_parameters = true},
                          {.lookahead = 0, .keep_buffers = false});
    run.step(0);
    memory::reset_peaks();
    const std::int64_t rest = run.held(Category::kParameters);
    const std::int64_t of_groups = run.held(Category::kCommunication);  // their transports
    run.trainer.evaluate({run.batch(1)});
    const std::int64_t scratch = run.peak(Category::kCommunication) - of_groups;
    std::vector<std::int64_t> packed(run.strategy.list().units.size(), 0), whole = packed;
    for (const train::FlatParameters& buffer : run.strategy.buckets()) {
      const std::size_t u = run.strategy.list().parameters[buffer.members().front()].unit;
      packed[u] += packed_bytes(buffer.layout(), 8);
      whole[u] += buffer.full_bytes();
    }
    const std::int64_t most_packed = *std::ranges::max_element(packed);
    EXPECT_EQ(run.peak(Category::kParameters) - rest,
              whole[0] + *std::max_element(whole.begin() + 1, whole.end()));
    EXPECT_GE(scratch, (shape.ranks() + 1) * most_packed);
    EXPECT_LE(scratch, (shape.ranks() + 1) * most_packed + packed[0]);
  });
}

}  // namespace
}  // namespace zero
