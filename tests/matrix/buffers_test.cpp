// Buffers (running means, masks): not sharded, rank 0's at the start, each rank's own afterwards.
// And models whose parameters are of several dtypes.

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <tests/support/ranks.hpp>
#include <tests/support/session.hpp>
#include <zero/base/error.hpp>
#include <zero/nn/functional.hpp>
#include <zero/optim/adamw.hpp>

namespace zero::testing {
namespace {

constexpr std::int64_t kWidth = 6;

// y = (x + offset) w, with a buffer that differs by rank until it is made the same, and one that
// counts the rows that this rank has seen.
class Buffered : public nn::Model {
 public:
  explicit Buffered(int rank) {
    weight_ = add_parameter("weight", {1, kWidth}, nn::Initializer::normal(0.5));
    offset_ = register_buffer("offset", at::arange(kWidth, at::kFloat) + 100.0 * rank);
    seen_ = register_buffer("seen", at::full({}, rank, at::kLong));
  }
  at::Tensor predict(const data::Batch& batch) override {
    return run(
        [&] {
          seen_.add_(batch.inputs.size(0));
          return nn::linear(batch.inputs + offset_, weight_);
        },
        {});
  }
  at::Tensor loss(const data::Batch& batch) override {
    return (predict(batch) - batch.targets).square().mean();
  }
  const at::Tensor& offset() const { return offset_; }
  const at::Tensor& seen() const { return seen_; }

 private:
  at::Tensor weight_, offset_, seen_;
};

// Parameters of two dtypes: x w in float, then in double.
class TwoDtypes : public nn::Model {
 public:
  TwoDtypes() {
    small_ = add_parameter("small", {kWidth, kWidth}, nn::Initializer::normal(0.5), at::kFloat);
    large_ = add_parameter("large", {1, kWidth}, nn::Initializer::normal(0.5), at::kDouble);
  }
  at::Tensor predict(const data::Batch& batch) override {
    return run([&] { return nn::linear(nn::linear(batch.inputs, small_).to(at::kDouble), large_); },
               {});
  }
  at::Tensor loss(const data::Batch& batch) override {
    return (predict(batch) - batch.targets).square().mean();
  }

 private:
  at::Tensor small_, large_;
};

data::Batch batch_of(int rank, int step) {
  return random_model_batch({.inputs = kWidth}, /*seed=*/23, rank, step);
}

template <typename Model>
std::vector<at::Tensor> train(Model& model, dist::Communicator& communicator,
                              const std::string& mode) {
  train::Registry registry;
  train::register_all_chapters(registry);
  nn::SeededValues values(9);
  const auto strategy =
      registry.make(mode, {model, communicator, optim::adamw({.learning_rate = 0.1}), &values, ""});
  train::Trainer trainer(*strategy);
  for (int s = 0; s < 2; ++s) trainer.step({batch_of(communicator.rank(), s)});
  std::vector<at::Tensor> weights;
  const train::UnshardedParameters whole(*strategy, 0);
  for (const nn::Parameter& p : strategy->list().parameters) {
    weights.push_back(p.tensor.detach().clone());
  }
  return weights;
}

TEST(Buffers, AreThoseOfRank0AtTheStartAndEachRanksOwnAfterwards) {
  for (const int ranks : {1, 2, 3}) {
    on_ranks(ranks, [](dist::Communicator& communicator) {
      std::vector<at::Tensor> reference;
      for (const std::string& mode : all_modes()) {
        const nn::DeferredStorage deferred;
        Buffered model(communicator.rank());
        const auto weights = train(model, communicator, mode);
        if (reference.empty()) reference = weights;
        EXPECT_TRUE(same_bits(weights, reference)) << mode;
        EXPECT_TRUE(at::equal(model.offset(), at::arange(kWidth, at::kFloat))) << mode;
        EXPECT_EQ(model.seen().item<std::int64_t>(), 8) << mode;  // rank 0's 0 and two batches of 4
      }
    });
  }
}

TEST(Dtypes, OfOneModelMayDiffer) {
  for (const int ranks : {1, 2, 3}) {
    on_ranks(ranks, [](dist::Communicator& communicator) {
      std::vector<at::Tensor> reference;
      for (const std::string& mode : all_modes()) {
        if (mode == "ddp:flat") continue;
        const nn::DeferredStorage deferred;
        TwoDtypes model;
        const auto weights = train(model, communicator, mode);
        EXPECT_EQ(weights[0].scalar_type(), at::kFloat);
        EXPECT_EQ(weights[1].scalar_type(), at::kDouble);
        if (reference.empty()) reference = weights;
        EXPECT_TRUE(same_bits(weights, reference)) << mode;
      }
    });
  }
}

// One buffer has one dtype: in double the floats would be averaged with other roundings.
TEST(Dtypes, OfAFlatReductionMustBeOne) {
  on_ranks(2, [](dist::Communicator& communicator) {
    TwoDtypes model;
    try {
      train(model, communicator, "ddp:flat");
      ADD_FAILURE() << "several dtypes in one buffer";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr("'large' is Double where 'small' is Float"));
    }
  });
}

}  // namespace
}  // namespace zero::testing
