// qgZ: the average, what it costs in memory and on the wire, and values that are not finite.
#include "quantized_gradients.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>

#include <limits>

#include <tests/support/error_of.hpp>
#include <tests/support/states.hpp>
#include <tests/support/zero_plus_plus_run.hpp>
#include <zero/distributed/agreement.hpp>

namespace zero {
namespace {

using dist::Purpose;
using memory::Category;
using testing::forward_batch;
using ::testing::HasSubstr;
using testing::inside_hosts;
using testing::on_hosts;
using testing::packed_bytes;
using testing::Shape;
using testing::sum_over_buffers;
using testing::ZeroPlusPlusRun;

class QgzOnMesh : public ::testing::TestWithParam<Shape> {};
INSTANTIATE_TEST_SUITE_P(Meshes, QgzOnMesh,
                         ::testing::Values(Shape{1, 2}, Shape{2, 1}, Shape{2, 2}, Shape{3, 2},
                                           Shape{2, 3}, Shape{4, 1}),
                         testing::name_of_shape);

constexpr std::int64_t kBlock = 256;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// A matrix, a vector, and tensors that are smaller than a block.
train::ShardLayout layout_for(int ranks) { return {{3000, 1, 70, 2500, 9}, ranks}; }

// The gradients of a rank. Those of later ranks are larger.
at::Tensor gradients_of(int rank, const train::ShardLayout& layout, at::ScalarType dtype) {
  at::Generator generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(rank + 1));
  const at::Tensor full = at::zeros({layout.total()});
  for (std::size_t t = 0; t < layout.tensors(); ++t) {
    full.narrow(0, layout.offset(t), layout.size(t))
        .copy_(at::randn({layout.size(t)}, generator) * (rank + 1));
  }
  return full.to(dtype);
}

// This rank's shard of the average of `full` over all ranks.
at::Tensor averaged(dist::Communicator& communicator, const Shape& shape,
                    const train::ShardLayout& layout, int bits, const at::Tensor& full) {
  const dist::Mesh mesh = dist::Mesh(communicator).with_shards(shape.shards);
  memory::StoragePool pool;
  QuantizedGradients transfer(mesh, {layout, {bits, kBlock}}, {layout, full.options(), pool, {}});
  const at::Tensor shard = at::empty({layout.shard()}, full.options());
  transfer.reduce(full, shard).wait();
  transfer.reduce_rest(shard).wait();
  return shard;
}

// Runs `body` with all formats and types.
using Body = std::function<void(dist::Communicator&, int bits, at::ScalarType dtype)>;
void on_formats(const Shape& shape, const Body& body) {
  on_hosts(shape, [&](dist::Communicator& communicator) {
    for (const int bits : {4, 8}) {
      for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
        SCOPED_TRACE(fmt::format("{} bits of {}", bits, c10::toString(dtype)));
        body(communicator, bits, dtype);
      }
    }
  });
}

// What each value is after it has been sent.
at::Tensor sent(const ShardBlocks& blocks, int owner, const at::Tensor& values) {
  const at::Tensor packed = at::empty({blocks.packed_bytes()}, at::kByte);
  blocks.quantize(owner, values.contiguous(), packed);
  at::Tensor out = at::empty({blocks.shard()});
  blocks.dequantize(owner, packed, out);
  return out;
}

// The definition: every rank rounds its gradients, every group its sum, and nothing else is
// rounded.
at::Tensor expected_average(const Shape& shape, const train::ShardLayout& layout, int bits,
                            at::ScalarType dtype, int owner) {
  const ShardBlocks blocks(layout, {bits, kBlock});
  at::Tensor total = at::zeros({layout.shard()});
  for (int g = 0; g < shape.replicas; ++g) {
    at::Tensor sum = at::zeros({layout.shard()});
    for (int t = 0; t < shape.shards; ++t) {
      const at::Tensor full = gradients_of(g * shape.shards + t, layout, dtype);
      sum += sent(blocks, owner, full.narrow(0, owner * layout.shard(), layout.shard()));
    }
    total += shape.replicas == 1 ? sum : sent(blocks, owner, sum);
  }
  return (total / shape.ranks()).to(dtype);
}

TEST_P(QgzOnMesh, IsTheAverageOfRoundedSumsOfRoundedGradients) {
  const Shape shape = GetParam();
  on_formats(shape, [&](dist::Communicator& communicator, int bits, at::ScalarType dtype) {
    const train::ShardLayout layout = layout_for(shape.ranks());
    const int rank = communicator.rank();
    const at::Tensor found =
        averaged(communicator, shape, layout, bits, gradients_of(rank, layout, dtype));
    EXPECT_TRUE(at::equal(found, expected_average(shape, layout, bits, dtype, rank)));
  });
}

// All shards alike: the bits do not depend on the rank that adds a shard up.
TEST_P(QgzOnMesh, DoesNotDependOnTheOwner) {
  const Shape shape = GetParam();
  on_formats(shape, [&](dist::Communicator& communicator, int bits, at::ScalarType dtype) {
    const train::ShardLayout one({1000}, 1);
    const train::ShardLayout layout({shape.ranks() * one.total()}, shape.ranks());
    ASSERT_EQ(layout.shard(), one.total());
    const at::Tensor full =
        gradients_of(communicator.rank(), one, dtype).repeat({shape.ranks()}).contiguous();
    EXPECT_TRUE(testing::is_the_same_on_all_ranks(
        communicator, averaged(communicator, shape, layout, bits, full)));
  });
}

TEST_P(QgzOnMesh, NamesTheRankOfAValueThatIsNotFinite) {
  const Shape shape = GetParam();
  on_hosts(shape, [&](dist::Communicator& communicator) {
    const train::ShardLayout layout = layout_for(shape.ranks());
    const int rank = communicator.rank(), last = shape.ranks() - 1;
    const auto named = [&](const at::Tensor& full) {
      averaged(communicator, shape, layout, 4, full);
      std::vector<bool> here = communicator.not_finite().take();
      std::vector<double> mine(here.begin(), here.end());
      const std::vector<double> all = dist::all_gather_scalars(communicator, mine);
      std::vector<int> ranks(mine.size(), 0);
      for (std::size_t k = 0; k < all.size(); ++k) ranks[k % mine.size()] |= all[k] != 0 ? 1 : 0;
      return ranks;
    };
    std::vector<int> nobody(static_cast<std::size_t>(shape.ranks()), 0), culprit = nobody;
    culprit.back() = 1;
    EXPECT_EQ(named(gradients_of(rank, layout, at::kFloat)), nobody);
    for (const float bad : {kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN()}) {
      const at::Tensor full = gradients_of(rank, layout, at::kFloat);
      if (rank == last) full[4].fill_(bad);
      EXPECT_EQ(named(full), culprit) << bad;
    }
    // A sum that overflows is the fault of the rank that adds it up: somebody is named.
    for (const float large : {3e38F, -3e38F}) {
      const at::Tensor huge = gradients_of(rank, layout, at::kFloat);
      huge[4].fill_(large);
      EXPECT_NE(named(huge), nobody) << large;
    }
    EXPECT_EQ(named(gradients_of(rank, layout, at::kFloat)), nobody);
  });
}

// Of the trainer: the rank and the parameter.
TEST(Qgz, GivesAnErrorOnAllRanksThatNamesRankAndParameter) {
  on_hosts({2, 2}, [](dist::Communicator& communicator) {
    ZeroPlusPlusRun<> run(communicator, {.quantize_gradients = true});
    run.step(0);
    run.strategy.passes().observe_gradients([&](std::size_t i, const at::Tensor& gradient) {
      if (communicator.rank() == 2 && i == 3) gradient.detach().view({-1})[7].fill_(kInfinity);
    });
    const std::string error = testing::error_of([&] { run.step(1); });
    EXPECT_THAT(error, HasSubstr("rank 2"));
    EXPECT_THAT(error, HasSubstr(run.strategy.list().parameters[3].name));
  });
}

TEST_P(QgzOnMesh, SendsInsideAndBetweenWhatTheFormulasSay) {
  const Shape shape = GetParam();
  on_hosts(shape, [&](dist::Communicator& communicator) {
    for (const int bits : {4, 8}) {
      for (const bool all : {false, true}) {
        ZeroPlusPlusRun<> run(communicator, {.secondary_shards = all,
                                             .quantize_parameters = all,
                                             .quantize_gradients = true,
                                             .gradient_bits = bits});
        run.step(0);
        const dist::Traffic sent = run.step(1);
        const std::int64_t packed = sum_over_buffers(
            run.strategy, [&](const auto& b) { return packed_bytes(b.layout(), bits, kBlock); });
        EXPECT_EQ(inside_hosts(sent, Purpose::kGradient),
                  (shape.shards - 1) * shape.replicas * packed);
        EXPECT_EQ(sent.between_hosts(Purpose::kGradient), (shape.replicas - 1) * packed);
        const train::Costs costs = run.strategy.costs();
        EXPECT_EQ(costs.sent, testing::training_bytes(sent));
        EXPECT_EQ(costs.sent_between_groups,
                  sent.between_hosts(Purpose::kGradient) + sent.between_hosts(Purpose::kParameter));
      }
    }
  });
}

// One bucket in the first hop, and the second hops of those before it.
std::int64_t peak_of_reductions(const ShardedDataParallel& strategy, const Shape& shape) {
  const std::int64_t n = shape.ranks(), r = shape.replicas;
  std::int64_t between = 0, peak = 0;
  for (std::size_t b = strategy.buckets().size(); b-- > 0;) {
    const train::ShardLayout& layout = strategy.buckets()[b].layout();
    const std::int64_t packed = packed_bytes(layout, 4, kBlock), sums = 4 * r * layout.shard();
    peak = std::max({peak, between + 2 * n * packed, between + n * packed + sums});
    if (r == 1) continue;
    peak = std::max(peak, between + sums + 2 * r * packed);
    between += 2 * r * packed;
  }
  return peak;
}

TEST_P(QgzOnMesh, HasTheScratchOfTheFormula) {
  const Shape shape = GetParam();
  on_hosts(shape, [&](dist::Communicator& communicator) {
    ZeroPlusPlusRun<> run(communicator, {.quantize_gradients = true}, {.keep_buffers = false});
    const std::int64_t of_groups = run.held(Category::kCommunication);  // their transports
    run.step(0);
    EXPECT_EQ(testing::text_of(testing::states_since(run.before)),
              testing::text_of(run.strategy.costs().at_rest));
    EXPECT_EQ(run.held(Category::kCommunication), of_groups);
    run.trainer.zero_grad();
    memory::reset_peaks();
    run.reduce(1);
    EXPECT_EQ(run.peak(Category::kCommunication) - of_groups,
              peak_of_reductions(run.strategy, shape));
    run.strategy.zero_grad();
    EXPECT_EQ(run.held(Category::kCommunication), of_groups);
  });
}

// What was sent and what has arrived: the next bucket takes both.
TEST(Qgz, GivesItsScratchBackToThePool) {
  on_hosts({1, 3}, [](dist::Communicator& communicator) {
    const dist::Mesh mesh = dist::Mesh(communicator).with_shards(3);
    const train::ShardLayout layout = layout_for(3);
    const at::Tensor full = gradients_of(communicator.rank(), layout, at::kFloat);
    const ShardBlocks blocks(layout, {4, kBlock});
    memory::StoragePool pool;
    QuantizedGradients transfer(mesh, blocks, {layout, full.options(), pool, {}});
    for (int step = 0; step < 2; ++step) {
      transfer.reduce(full, {}).wait();
      EXPECT_EQ(static_cast<std::int64_t>(pool.bytes()), 2 * 3 * blocks.packed_bytes());
      transfer.reduce_rest(at::empty({layout.shard()})).wait();
    }
  });
}

// As after an error of the user's: gradients are dropped on their way, or the strategy goes.
TEST(Qgz, GradientsCanBeDroppedWhileTheyTravel) {
  on_hosts({2, 2}, [](dist::Communicator& communicator) {
    const ZeroPlusPlusOptions parts{.quantize_gradients = true};
    ZeroPlusPlusRun<> run(communicator, parts, {.keep_buffers = false});
    const std::int64_t of_groups = run.held(Category::kCommunication);
    run.strategy.backward(forward_batch(run.strategy, run.batch(5)));
    EXPECT_GT(run.held(Category::kCommunication), of_groups);
    run.strategy.zero_grad();
    EXPECT_EQ(run.held(Category::kCommunication), of_groups);
    run.step(0);
    ZeroPlusPlusRun<> left(communicator, parts, {.keep_buffers = false});
    left.strategy.backward(forward_batch(left.strategy, left.batch(5)));
  });
}

}  // namespace
}  // namespace zero
