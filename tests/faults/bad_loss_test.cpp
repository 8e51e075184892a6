// Losses that are not numbers, batches without terms, calls in the wrong order, and models that
// cannot be sharded: the same decision on every rank, and nothing damaged.

#include <limits>

#include <tests/support/deferred.hpp>
#include <tests/support/error_of.hpp>
#include <tests/support/session.hpp>
#include <zero/optim/adamw.hpp>

namespace zero::testing {
namespace {

using ::testing::HasSubstr;

class BadLoss : public ::testing::TestWithParam<double> {};
INSTANTIATE_TEST_SUITE_P(Values, BadLoss,
                         ::testing::Values(std::numeric_limits<double>::quiet_NaN(),
                                           std::numeric_limits<double>::infinity(),
                                           -std::numeric_limits<double>::infinity()));

// In the first or the second of two micro-batches, reduced together or one by one. The step is as
// if it had never been: the next one gives the bits of a run without it.
TEST_P(BadLoss, OfOneRankIsRefusedByAllAndLeavesNoTrace) {
  on_all_modes(3, [](dist::Communicator& communicator, const std::string& mode) {
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
        expect_error([&] { ill.trainer().step(batches); },
                     {"step 1: the loss is infinite or NaN on rank 1; no rank has changed"});
        EXPECT_TRUE(same_bits(ill.weights(), before));
      }
      step(well, 1);
      step(ill, 1);
      EXPECT_TRUE(same_bits(ill.weights(), well.weights()));
    }
  });
}

TEST(EmptyBatches, OnAllRanksAreRefusedByAll) {
  on_all_modes(2, [](dist::Communicator& communicator, const std::string& mode) {
    Session session(communicator, mode);
    const data::Batch empty = session.batch(0, /*samples=*/0);
    expect_error([&] { session.trainer().step({empty}); }, {"step 0: no rank has a loss term"});
    expect_error([&] { session.trainer().evaluate({empty}); }, {"no rank has a loss term"});
    session.step(0);  // and on it goes
  });
}

TEST(NoBatches, AreRefusedByAll) {
  on_ranks(2, [](dist::Communicator& communicator) {
    Session session(communicator, "ddp");
    expect_error([&] { session.trainer().step({}); },
                 {"rank 0 has 0 micro-batches; every rank needs at least one"});
  });
}

TEST(WrongOrder, StepBeforeBackwardIsRefused) {
  on_all_modes(2, [](dist::Communicator& communicator, const std::string& mode) {
    Session session(communicator, mode);
    const std::vector<at::Tensor> before = session.weights();
    expect_error([&] { session.strategy().optimizer_step(); },
                 {"optimizer_step() before backward()"});
    session.step(0);
    session.trainer().zero_grad();
    EXPECT_THAT(error_of([&] { session.strategy().optimizer_step(); }),
                HasSubstr("optimizer_step() before backward()"))
        << "after gradients were cleared";
    EXPECT_FALSE(same_bits(session.weights(), before));
  });
}

// Silently, the second gradient would stay where it is under stage 2, and be added under DDP.
TEST(WrongOrder, ASecondBackwardBeforeTheReductionIsRefused) {
  on_all_modes(2, [](dist::Communicator& communicator, const std::string& mode) {
    Session session(communicator, mode);
    train::Strategy& strategy = session.strategy();
    strategy.backward(forward_batch(strategy, session.batch(0)));
    const at::Tensor loss = forward_batch(strategy, session.batch(1));
    expect_error([&] { strategy.backward(loss); },
                 {"backward() a second time before finish_backward()"});
    finish_step(strategy);
    session.step(0);
  });
}

// A model of two parameters that may be tampered with before it is listed.
class Pair : public nn::Unit {
 public:
  Pair(at::Tensor first, at::Tensor second) {
    register_parameter("first", std::move(first));
    register_parameter("second", std::move(second));
  }
};

TEST(BadModel, IsRefusedByAll) {
  const at::Tensor both = at::zeros({8}), two = at::zeros({2});
  const auto pair = [](const at::Tensor& first, const at::Tensor& second) {
    return [=] { return std::make_shared<Pair>(first.clone(), second); };
  };
  using Make = std::function<std::shared_ptr<Pair>()>;
  const std::vector<std::tuple<std::vector<std::string>, Make, std::string>> rows = {
      {all_modes(), pair(at::zeros({3, 4}).t(), two),
       "parameter 'first' is not contiguous (strides 1,4)"},
      {all_modes(),
       [&] { return std::make_shared<Pair>(both.narrow(0, 0, 5), both.narrow(0, 3, 5)); },
       "parameters 'first' and 'second' are two tensors over the same memory"},
      // One buffer has one dtype: in double the floats would be averaged with other roundings.
      {{"ddp:flat"},
       pair(at::zeros({3}), two.to(at::kDouble)),
       "'second' is Double and 'first' is Float"}};
  for (const auto& [modes, make, message] : rows) {
    on_modes(2, modes, [&](dist::Communicator& communicator, const std::string& mode) {
      const auto model = make();
      expect_error(
          [&] {
            make_strategy(mode, {*model, communicator, optim::adamw(), nullptr, ""});
          },
          {message});
    });
  }
}

TEST(BadModel, ParameterWithoutValuesOrSource) {
  on_ranks(1, [](dist::Communicator& communicator) {
    const auto model = make_deferred<RandomModel>(RandomModelConfig{});
    expect_error(
        [&] {
          make_strategy("ddp", {*model, communicator, optim::adamw(), nullptr, ""});
        },
        {"parameter 'first' has no values"});
  });
}

}  // namespace
}  // namespace zero::testing
