#include <fmt/ranges.h>

#include <tests/support/ranks.hpp>
#include <tests/support/toy_run.hpp>
#include <zero/distributed/agreement.hpp>

#include "tensor_zero1.hpp"
#include "tensor_zero2.hpp"
#include "tensor_zero3.hpp"

namespace zero {
namespace {

using memory::Category;
using testing::forward_batch;
using testing::largest_unit;
using testing::on_ranks;
using testing::Toy;
using testing::ToyRun;

// Large enough for bytes to say something: four linear layers, 600 KiB.
struct Medium : Toy {
  Medium() : Toy(tools::MlpConfig{.inputs = 63, .hidden = {257, 255, 251}, .outputs = 9}) {}
};

TEST(TensorZero3, NeverHoldsTheModelNotEvenAtTheStart) {
  on_ranks(3, [](dist::Communicator& communicator) {
    memory::reset_peaks();
    const ToyRun<TensorZero3, Medium> run(communicator, "flat");
    const std::int64_t rest = run.strategy.costs().at_rest.parameters;
    EXPECT_EQ(run.held(Category::kParameters), rest);
    // The shards, and one unit while it is cut.
    EXPECT_LE(run.peak(Category::kParameters), rest + largest_unit(run.strategy.list()) + 4096);
    EXPECT_LT(run.peak(Category::kParameters), run.strategy.list().bytes());
  });
}

TEST(TensorZero3, HoldsTheRunningUnitAndTheRootWithinAStep) {
  on_ranks(2, [](dist::Communicator& communicator) {
    ToyRun<TensorZero3, Medium> run(communicator, "flat");
    run.step(0);
    memory::reset_peaks();
    const std::int64_t rest = run.held(Category::kParameters);
    run.step(1);
    EXPECT_EQ(run.held(Category::kParameters), rest) << "something stayed gathered";
    const std::int64_t peak = run.peak(Category::kParameters) - rest;
    EXPECT_GE(peak, largest_unit(run.strategy.list())) << "nothing was gathered";
    EXPECT_LE(peak, testing::unit_bytes(run.strategy.list(), 0) +
                        largest_unit(run.strategy.list()) + 4096);
    EXPECT_GT(run.trainer.evaluate({run.batch(2)}), 0.0);
    EXPECT_EQ(run.held(Category::kParameters), rest) << "of an evaluation something stayed";
  });
}

TEST(TensorZero3, WholeVariantHoldsTheModelFromForwardToBackward) {
  on_ranks(2, [](dist::Communicator& communicator) {
    ToyRun<TensorZero3, Medium> run(communicator, "whole");
    const std::int64_t rest = run.held(Category::kParameters);
    const at::Tensor loss = forward_batch(run.strategy, run.batch(0));
    EXPECT_GE(run.held(Category::kParameters) - rest, run.strategy.list().bytes());
    run.strategy.backward(loss);
    run.strategy.finish_backward();
    EXPECT_EQ(run.held(Category::kParameters), rest);
  });
}

TEST(TensorZero2, GradientsAreNeverAllThere) {
  on_ranks(2, [](dist::Communicator& communicator) {
    ToyRun<TensorZero2, Medium> run(communicator, "flat");
    run.step(0);
    run.trainer.zero_grad();
    memory::reset_peaks();
    run.step(1);
    const std::int64_t rest = run.strategy.costs().at_rest.gradients;
    EXPECT_EQ(run.held(Category::kGradients), rest);
    // Two units: one whose buffer is filled while that before it is on its way.
    EXPECT_LT(run.peak(Category::kGradients), rest + 2 * largest_unit(run.strategy.list()));
    EXPECT_LT(run.peak(Category::kGradients), run.strategy.list().bytes());
  });
}

// Sizes that four ranks divide without padding: weights and biases are multiples of 256.
struct Even : Toy {
  Even() : Toy(tools::MlpConfig{.inputs = 64, .hidden = {256, 256}, .outputs = 256}) {}
};

// Bytes of this rank, as allocated after a step and as sent in it.
struct Toll {
  std::int64_t parameters, gradients, moments, sent_gradients, sent_parameters;
};

template <class Stage>
Toll toll_of(dist::Communicator& communicator) {
  ToyRun<Stage, Even> run(communicator, "flat");
  const dist::Traffic sent = run.step(0);
  return {run.held(Category::kParameters), run.held(Category::kGradients),
          run.held(Category::kOptimizer), sent.bytes(dist::Purpose::kGradient),
          sent.bytes(dist::Purpose::kParameter)};
}

// What whole-parameter ownership cannot do.
template <class Stage>
void expect_all_ranks_alike(dist::Communicator& communicator) {
  const Toll toll = toll_of<Stage>(communicator);
  const std::vector<std::int64_t> all = {toll.parameters, toll.gradients, toll.moments,
                                         toll.sent_gradients, toll.sent_parameters};
  for (const std::int64_t bytes : all) EXPECT_GT(bytes, 0);
  dist::verify_same(communicator, "what a rank holds and sends",
                    fmt::format("{}", fmt::join(all, " ")));
}

TEST(TensorSharding, EveryRankHoldsAndSendsTheSame) {
  on_ranks(4, [](dist::Communicator& communicator) {
    expect_all_ranks_alike<TensorZero1>(communicator);
    expect_all_ranks_alike<TensorZero2>(communicator);
    expect_all_ranks_alike<TensorZero3>(communicator);
  });
}

}  // namespace
}  // namespace zero
