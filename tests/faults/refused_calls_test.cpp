// Batches without terms, calls in the wrong order, and models that cannot be sharded: the same
// decision on every rank, and nothing damaged.

#include <ATen/ops/zeros.h>
#include <torch/nn/module.h>

#include <tests/support/deferred.hpp>
#include <tests/support/error_of.hpp>
#include <tests/support/session.hpp>
#include <zero/optim/adamw.hpp>

namespace zero::testing {
namespace {

using ::testing::HasSubstr;

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

// In double the floats would be averaged with other roundings.
TEST(BadModel, OfTwoTypesIsRefusedByAFlatAllReduce) {
  on_ranks(2, [](dist::Communicator& communicator) {
    torch::nn::Module model;
    model.register_parameter("first", at::zeros({3}));
    model.register_parameter("second", at::zeros({2}, at::kDouble));
    expect_error(
        [&] {
          make_strategy("ddp:flat", {model, communicator, optim::adamw()});
        },
        {"'second' is Double and 'first' is Float"});
  });
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
