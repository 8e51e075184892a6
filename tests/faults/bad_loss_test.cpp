// Losses that are not numbers, batches without terms, calls in the wrong order, and models that
// cannot be sharded: the same decision on every rank, and nothing damaged.

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cmath>
#include <limits>

#include <tests/support/error_of.hpp>
#include <tests/support/ranks.hpp>
#include <tests/support/session.hpp>
#include <zero/base/error.hpp>
#include <zero/optim/adamw.hpp>

namespace zero::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class BadLoss : public ::testing::TestWithParam<double> {};
INSTANTIATE_TEST_SUITE_P(Values, BadLoss,
                         ::testing::Values(std::nan(""), std::numeric_limits<double>::infinity(),
                                           -std::numeric_limits<double>::infinity()),
                         [](const auto& info) {
                           return std::isnan(info.param) ? "NaN"
                                  : info.param > 0       ? "Inf"
                                                         : "MinusInf";
                         });

// In the first or the second of two micro-batches, reduced together or one by one. The step is as
// if it had never been: the next one gives the bits of a run without it.
TEST_P(BadLoss, OfOneRankIsRefusedByAllAndLeavesNoTrace) {
  on_ranks(3, [](dist::Communicator& communicator) {
    for (const std::string& mode : all_modes()) {
      for (const auto accumulation :
           {train::Accumulation::kLocal, train::Accumulation::kReduceEach}) {
        SessionOptions options;
        options.accumulation = accumulation;
        Session well(communicator, mode, options);
        Session ill(communicator, mode, options);
        const auto step = [](Session& session, int number) {
          session.trainer().step({session.batch(2 * number), session.batch(2 * number + 1)});
        };
        step(well, 0);
        step(ill, 0);
        const std::vector<at::Tensor> before = ill.weights();
        for (const std::size_t where : {0U, 1U}) {
          std::vector<data::Batch> batches = {ill.batch(8), ill.batch(9)};
          if (communicator.rank() == 1) batches[where].targets.fill_(GetParam());
          EXPECT_THAT(testing::error_of([&] { ill.trainer().step(batches); }),
                      HasSubstr("step 1: the loss is NaN or infinite on rank 1; no rank updates"))
              << mode;
          EXPECT_TRUE(same_bits(ill.weights(), before)) << mode;
        }
        step(well, 1);
        step(ill, 1);
        EXPECT_TRUE(same_bits(ill.weights(), well.weights())) << mode;
      }
    }
  });
}

TEST(EmptyBatches, OnAllRanksAreRefusedByAll) {
  on_ranks(2, [](dist::Communicator& communicator) {
    for (const std::string& mode : all_modes()) {
      Session session(communicator, mode);
      const data::Batch empty = session.batch(0, /*samples=*/0);
      EXPECT_THAT(testing::error_of([&] { session.trainer().step({empty}); }),
                  HasSubstr("step 0: no rank has a loss term"))
          << mode;
      EXPECT_THAT(testing::error_of([&] { session.trainer().evaluate({empty}); }),
                  HasSubstr("no rank has a loss term"))
          << mode;
      session.step(0);  // and on it goes
    }
  });
}

TEST(NoBatches, AreRefusedByAll) {
  on_ranks(2, [](dist::Communicator& communicator) {
    Session session(communicator, "ddp");
    EXPECT_THAT(testing::error_of([&] { session.trainer().step({}); }),
                HasSubstr("rank 0 has 0 micro-batches; every rank needs at least one"));
  });
}

TEST(WrongOrder, StepBeforeBackwardIsRefused) {
  on_ranks(2, [](dist::Communicator& communicator) {
    for (const std::string& mode : all_modes()) {
      Session session(communicator, mode);
      const std::vector<at::Tensor> before = session.weights();
      EXPECT_THAT(testing::error_of([&] { session.strategy().optimizer_step(); }),
                  HasSubstr("optimizer_step() before backward()"))
          << mode;
      session.step(0);
      session.trainer().zero_grad();
      EXPECT_THAT(testing::error_of([&] { session.strategy().optimizer_step(); }),
                  HasSubstr("optimizer_step() before backward()"))
          << mode << " after gradients were cleared";
      EXPECT_FALSE(same_bits(session.weights(), before)) << mode;
    }
  });
}

// Silently, the second gradient would stay where it is under stage 2, and be added under DDP.
TEST(WrongOrder, ASecondBackwardBeforeTheReductionIsRefused) {
  on_ranks(2, [](dist::Communicator& communicator) {
    for (const std::string& mode : all_modes()) {
      Session session(communicator, mode);
      train::Strategy& strategy = session.strategy();
      strategy.backward(strategy.forward(session.batch(0)));
      const at::Tensor loss = strategy.forward(session.batch(1));
      EXPECT_THAT(testing::error_of([&] { strategy.backward(loss); }),
                  HasSubstr("backward() a second time before finish_backward()"))
          << mode;
      strategy.finish_backward();
      strategy.optimizer_step();
      strategy.sync_parameters();
      session.step(0);
    }
  });
}

// A model of two parameters that may be tampered with before it is listed.
class Pair : public nn::Model {
 public:
  Pair(at::Tensor first, at::Tensor second, bool trainable = true) {
    register_parameter("first", std::move(first), trainable);
    register_parameter("second", std::move(second), trainable);
  }
  at::Tensor loss(const data::Batch&) override { return at::zeros({}); }
  at::Tensor predict(const data::Batch&) override { return at::zeros({}); }
};

void expect_refused(const std::function<std::shared_ptr<Pair>()>& make,
                    const std::string& message) {
  on_ranks(2, [&](dist::Communicator& communicator) {
    train::Registry registry;
    train::register_all_chapters(registry);
    for (const std::string& mode : all_modes()) {
      const auto model = make();
      EXPECT_THAT(testing::error_of([&] {
                    registry.make(mode, {*model, communicator, optim::adamw(), nullptr, ""});
                  }),
                  HasSubstr(message))
          << mode;
    }
  });
}

TEST(BadModel, ParameterThatIsNotContiguous) {
  expect_refused(
      [] {
        return std::make_shared<Pair>(at::zeros({3, 4}).t(), at::zeros({2}));
      },
      "parameter 'first' is not contiguous (strides 1,4)");
}

TEST(BadModel, TwoParametersOverTheSameMemory) {
  expect_refused(
      [] {
        const at::Tensor both = at::zeros({8});
        return std::make_shared<Pair>(both.narrow(0, 0, 5), both.narrow(0, 3, 5));
      },
      "parameters 'first' and 'second' are two tensors over the same memory");
}

TEST(BadModel, NothingToTrain) {
  expect_refused(
      [] { return std::make_shared<Pair>(at::zeros({3}), at::zeros({2}), /*trainable=*/false); },
      "no trainable parameter (2 parameters, none requires a gradient)");
}

TEST(BadModel, NoParameters) {
  on_ranks(1, [](dist::Communicator&) {
    class Empty : public nn::Model {
      at::Tensor loss(const data::Batch&) override { return at::zeros({}); }
      at::Tensor predict(const data::Batch&) override { return at::zeros({}); }
    };
    Empty model;
    EXPECT_THAT(testing::error_of([&] { nn::list_parameters(model); }), HasSubstr("(0 parameters"));
  });
}

TEST(BadModel, ParameterWithoutValuesOrSource) {
  on_ranks(1, [](dist::Communicator& communicator) {
    std::shared_ptr<RandomModel> model;
    {
      const nn::DeferredStorage deferred;
      model = std::make_shared<RandomModel>(RandomModelConfig{});
    }
    train::Registry registry;
    train::register_all_chapters(registry);
    EXPECT_THAT(testing::error_of([&] {
                  registry.make("ddp", {*model, communicator, optim::adamw(), nullptr, ""});
                }),
                HasSubstr("parameter 'first' has no values"));
  });
}

TEST(BadMode, NamesTheKnownOnes) {
  on_ranks(2, [](dist::Communicator& communicator) {
    EXPECT_THAT(testing::error_of([&] { Session(communicator, "zero4"); }),
                HasSubstr("unknown mode 'zero4'; known modes: ddp"));
    // A default may be called by its own name, so it is listed by it too.
    EXPECT_THAT(testing::error_of([&] { Session(communicator, "zero3:hole"); }),
                AllOf(HasSubstr("zero3:whole"), HasSubstr("zero3:unit")));
  });
}

}  // namespace
}  // namespace zero::testing
