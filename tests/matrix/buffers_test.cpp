// Buffers (running means, masks): not sharded, rank 0's at the start, each rank's own afterwards.
// And models whose parameters are of several dtypes.

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>

#include <tests/support/deferred.hpp>
#include <tests/support/error_of.hpp>
#include <tests/support/session.hpp>
#include <zero/nn/functional.hpp>
#include <zero/optim/adamw.hpp>

namespace zero::testing {
namespace {

constexpr std::int64_t kWidth = 6;

// y = (x + offset) w, with a buffer that differs by rank until it is made the same, and one that
// counts the rows that this rank has seen.
struct Buffered : nn::Model {
  explicit Buffered(int rank) {
    weight = add_parameter("weight", {1, kWidth}, nn::Initializer::normal(0.5));
    offset = register_buffer("offset", at::arange(kWidth, at::kFloat) + 100.0 * rank);
    seen = register_buffer("seen", at::full({}, rank, at::kLong));
  }
  at::Tensor predict(const data::Batch& batch) override {
    return run([&] {
      seen.add_(batch.inputs.size(0));
      return nn::linear(batch.inputs + offset, weight);
    });
  }
  at::Tensor loss(const data::Batch& batch) override {
    return (predict(batch) - batch.targets).square().mean();
  }
  at::Tensor weight, offset, seen;
};

// Parameters of two dtypes: x w in float, then in double.
struct TwoDtypes : nn::Model {
  TwoDtypes() {
    small = add_parameter("small", {kWidth, kWidth}, nn::Initializer::normal(0.5), at::kFloat);
    large = add_parameter("large", {1, kWidth}, nn::Initializer::normal(0.5), at::kDouble);
  }
  at::Tensor predict(const data::Batch& batch) override {
    return run([&] { return nn::linear(nn::linear(batch.inputs, small).to(at::kDouble), large); });
  }
  at::Tensor loss(const data::Batch& batch) override {
    return (predict(batch) - batch.targets).square().mean();
  }
  at::Tensor small, large;
};

data::Batch batch_of(int rank, int step) {
  return random_model_batch({.inputs = kWidth}, /*seed=*/23, rank, step);
}

std::vector<at::Tensor> train(nn::Model& model, dist::Communicator& communicator,
                              const std::string& mode) {
  nn::SeededValues values(9);
  const auto strategy =
      make_strategy(mode, {model, communicator, optim::adamw({.learning_rate = 0.1}), &values});
  train::Trainer trainer(*strategy);
  for (int s = 0; s < 2; ++s) trainer.step({batch_of(communicator.rank(), s)});
  return whole_weights(*strategy);
}

ZERO_TESTS_ON_RANKS(Buffers, 1, 2, 3);

TEST_P(Buffers, AreThoseOfRank0AtTheStartAndEachRanksOwnAfterwards) {
  on_ranks(GetParam(), [](dist::Communicator& communicator) {
    const auto first = make_deferred<Buffered>(communicator.rank());
    const std::vector<at::Tensor> reference = train(*first, communicator, "ddp");
    for (const std::string& mode : all_modes()) {
      const auto model = make_deferred<Buffered>(communicator.rank());
      EXPECT_TRUE(same_bits(train(*model, communicator, mode), reference)) << mode;
      EXPECT_TRUE(at::equal(model->offset, at::arange(kWidth, at::kFloat))) << mode;
      EXPECT_EQ(model->seen.item<std::int64_t>(), 8) << mode;  // rank 0's 0 and two batches of 4
    }
  });
}

ZERO_TESTS_ON_RANKS(Dtypes, 1, 2, 3);

TEST_P(Dtypes, OfOneModelMayDiffer) {
  on_ranks(GetParam(), [](dist::Communicator& communicator) {
    const auto trained = [&](const std::string& mode) {
      return train(*make_deferred<TwoDtypes>(), communicator, mode);
    };
    const std::vector<at::Tensor> reference = trained("ddp");
    EXPECT_EQ(reference[0].scalar_type(), at::kFloat);
    EXPECT_EQ(reference[1].scalar_type(), at::kDouble);
    for (const std::string& mode : all_modes()) {
      if (mode == "ddp:flat") continue;
      EXPECT_TRUE(same_bits(trained(mode), reference)) << mode;
    }
  });
}

// One buffer has one dtype: in double the floats would be averaged with other roundings.
TEST(FlatReduction, NeedsOneDtype) {
  on_ranks(2, [](dist::Communicator& communicator) {
    expect_error([&] { train(*make_deferred<TwoDtypes>(), communicator, "ddp:flat"); },
                 {"'large' is Double and 'small' is Float"});
  });
}

}  // namespace
}  // namespace zero::testing
