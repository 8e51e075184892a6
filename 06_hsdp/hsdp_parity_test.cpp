// Groups of ranks that hold copies of each other, against chapter 00 that adds in the order of the
// same mesh, to the last bit: ((r0 + … + r(S-1)) + (rS + …) + …) / N.

#include <ATen/ops/arange.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <tests/support/deferred.hpp>
#include <tests/support/groups.hpp>
#include <tests/support/modes.hpp>
#include <tests/support/ranks.hpp>
#include <tests/support/session.hpp>
#include <tests/support/two_bytes.hpp>

namespace zero::testing {
namespace {

std::string with_size(const std::string& mode, int shard_size) {
  return fmt::format("{}:shard_size={}", mode, shard_size);
}

// hsdp1 to hsdp3; in the program of the mutants the one that is replaced.
std::vector<std::string> hsdp_modes() {
  std::vector<std::string> modes = all_strategies();
  std::erase_if(modes, [](const std::string& mode) { return !mode.starts_with("hsdp"); });
  EXPECT_FALSE(modes.empty());
  return modes;
}

void expect_like_ddp(const Shape& shape, const RunOptions& options, const std::string& more = "") {
  std::vector<std::string> modes = hsdp_modes();
  for (std::string& mode : modes) mode = with_size(mode, shape.shards) + more;
  expect_like(shape, with_size("hddp", shape.shards), modes, options);
}

class HsdpParity : public ::testing::TestWithParam<Shape> {};
INSTANTIATE_TEST_SUITE_P(Meshes, HsdpParity,
                         ::testing::Values(Shape{1, 2}, Shape{2, 1}, Shape{2, 2}, Shape{3, 2},
                                           Shape{2, 4}),
                         name_of_shape);

TEST_P(HsdpParity, AdamW) { expect_like_ddp(GetParam(), {}); }

// Several buckets in a unit.
TEST_P(HsdpParity, SmallBucketsAndMoreAhead) {
  expect_like_ddp(GetParam(), {.steps = 3},
                  ":bucket_mib=0.0002:lookahead=3:defer_parameter_gather=true");
}

TEST_P(HsdpParity, ClippedGradients) {
  expect_like_ddp(GetParam(), {.steps = 3, .clip_norm = 0.05});
}

TEST_P(HsdpParity, AccumulatedLocallyAndAfterReducingEach) {
  expect_like_ddp(GetParam(), {.steps = 2, .micro_batches = 3});
  expect_like_ddp(
      GetParam(),
      {.steps = 2, .micro_batches = 3, .accumulation = train::Accumulation::kReduceEach});
}

// Also the tests that mutants must fail.
TEST(HsdpAtTwoByTwo, IsChapter00InTheOrderOfTheMesh) { expect_like_ddp({2, 2}, {.steps = 3}); }

TEST(HsdpAtTwoByTwo, ClipsByTheNormOfChapter00) {
  expect_like_ddp({2, 2}, {.steps = 3, .clip_norm = 0.05});
}

// What makes the comparisons above mean something: the tree adds in another order.
TEST(HsdpAtTwoByTwo, TheOrderOfTheMeshIsAnother) {
  on_ranks(4, [](dist::Communicator& communicator) {
    const RunRecord flat = run_edge_case_model(communicator, "ddp", {.steps = 1});
    const RunRecord tree = run_edge_case_model(communicator, "hddp:shard_size=2", {.steps = 1});
    EXPECT_FALSE(same_bits(tree.gradients[0], flat.gradients[0]));
    // Groups of one rank, or of all ranks, add as ever.
    for (const char* mode : {"hddp:shard_size=1", "hddp:shard_size=4"}) {
      const RunRecord same = run_edge_case_model(communicator, mode, {.steps = 1});
      EXPECT_TRUE(same_bits(same.gradients[0], flat.gradients[0])) << mode;
    }
  });
}

// One unit whose gradient is the batch: whole numbers, whose sums are exact in any order.
class WholeNumbers : public BatchModel {
 public:
  static constexpr std::int64_t kElements = 201;
  WholeNumbers() {
    unit_ = register_module("unit", std::make_shared<Inner>());
    small_ = add_parameter("small", {}, nn::Initializer::constant(1.0));
  }
  at::Tensor loss(const data::Batch& batch) override {
    return run([&] { return unit_->forward(batch.inputs) + small_ * batch.inputs.view(-1)[3]; });
  }

 private:
  struct Inner : nn::Unit {
    Inner() { weight = add_parameter("weight", {kElements}, nn::Initializer::normal(0.5)); }
    at::Tensor forward(const at::Tensor& x) {
      return run([&] { return (weight * x).sum(); });
    }
    at::Tensor weight;
  };
  std::shared_ptr<Inner> unit_;
  at::Tensor small_;
};

std::vector<at::Tensor> average_of_whole_numbers(dist::Communicator& communicator,
                                                 const std::string& mode) {
  const auto model = make_deferred<WholeNumbers>();
  nn::SeededValues values(3);
  const auto strategy = make_strategy(mode, {*model, communicator, optim::adamw(), &values});
  data::Batch batch;
  batch.inputs = (at::arange(WholeNumbers::kElements) * (communicator.rank() + 3))
                     .remainder(251)
                     .to(at::kFloat);
  batch.loss_terms = 1;
  strategy->backward(forward_batch(*strategy, batch));
  strategy->finish_backward();
  return whole_gradients(*strategy);
}

// The divisor is that of plain sharding, and the sum is divided once.
void expect_averages_of_any_order(const Shape& shape) {
  on_ranks(shape.ranks(), [&](dist::Communicator& communicator) {
    const std::vector<at::Tensor> expected = average_of_whole_numbers(communicator, "ddp");
    for (const std::string& mode : hsdp_modes()) {
      EXPECT_TRUE(same_bits(average_of_whole_numbers(communicator, with_size(mode, shape.shards)),
                            expected))
          << mode;
    }
  });
}

TEST_P(HsdpParity, AveragesWholeNumbersAsAnyOrderDoes) { expect_averages_of_any_order(GetParam()); }
TEST(HsdpAtTwoByTwo, AveragesWholeNumbersAsAnyOrderDoes) { expect_averages_of_any_order({2, 2}); }

// Sums of gradients of 2 bytes are rounded once where they are added in float32.
TEST(HsdpMixedPrecision, IsChapter00InTheOrderOfTheMesh) {
  on_ranks(4, [](dist::Communicator& communicator) {
    const auto train = [&](const std::string& mode, const SessionOptions& options) {
      Session session(communicator, mode, options);
      for (int s = 0; s < 3; ++s) session.step(s);
      return session.weights();
    };
    for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
      for (const auto reduce : {dist::ReduceType::kOwn, dist::ReduceType::kFloat32}) {
        SCOPED_TRACE(fmt::format("{} in {}", c10::toString(dtype), name(reduce)));
        const SessionOptions options = mixed(dtype, reduce);
        const auto reference = train("hddp:shard_size=2", options);
        for (const std::string& mode : hsdp_modes()) {
          EXPECT_TRUE(same_bits(train(with_size(mode, 2), options), reference)) << mode;
          EXPECT_TRUE(same_bits(train(with_size(mode, 1), options), train("ddp", options))) << mode;
        }
      }
    }
  });
}

}  // namespace
}  // namespace zero::testing
