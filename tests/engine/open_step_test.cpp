// What a program does with gradients and parameters between the first backward() of a step and its
// step(). Each ends with the bits of the plain module or with an error on every rank.

#include <fmt/format.h>
#include <torch/nn/utils/clip_grad.h>

#include <functional>
#include <string>
#include <vector>

#include <tests/support/engine_run.hpp>
#include <tests/support/error_of.hpp>
#include <tests/support/modes.hpp>
#include <tests/support/same_bits.hpp>
#include <zero/optim/master_weights.hpp>

namespace zero::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

ZERO_TESTS_ON_RANKS(OpenStep, 2, 3);

// The plain module's weights after one step on batch 0 of all ranks, with `change` before the
// update.
std::vector<at::Tensor> plain_weights(
    int ranks, const std::function<void(std::vector<at::Tensor>& parameters)>& change) {
  const Toy toy = Toy::alone();
  std::vector<at::Tensor> parameters = parameters_of(*toy.model);
  const auto optimizer = optim::adamw()(parameters);
  std::vector<at::Tensor> sums(parameters.size());
  for (int r = 0; r < ranks; ++r) {
    toy.model->loss(toy.batch(r, 0)).backward();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const at::Tensor mine = std::exchange(parameters[i].mutable_grad(), at::Tensor());
      sums[i] = r == 0 ? mine : sums[i] + mine;
    }
  }
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    parameters[i].mutable_grad() = sums[i] / ranks;
  }
  change(parameters);
  optimizer->step();
  return parameters;
}

// What loops of PyTorch do with gradients between backward() and step().
struct Change {
  const char* name;
  std::function<void(std::vector<at::Tensor>& parameters)> make;
};

const std::vector<Change> kChanges = {
    {"clip_grad_norm_",
     [](std::vector<at::Tensor>& parameters) {
       torch::nn::utils::clip_grad_norm_(parameters, /*max_norm=*/0.01);
     }},
    {"clip_grad_value_",
     [](std::vector<at::Tensor>& parameters) {
       torch::nn::utils::clip_grad_value_(parameters, /*clip_value=*/0.01);
     }},
    {"mul_", [](std::vector<at::Tensor>& parameters) { parameters[1].mutable_grad().mul_(0.5); }},
    {"add_", [](std::vector<at::Tensor>& parameters) { parameters[0].mutable_grad() += 0.1; }},
    {"another tensor",
     [](std::vector<at::Tensor>& parameters) {
       parameters[2].mutable_grad() = parameters[2].grad() * 2;
     }},
};

std::vector<at::Tensor> parameters_in(EngineRun& run) {
  std::vector<at::Tensor> parameters;
  for (const nn::Parameter& p : run.engine.strategy().list().parameters) {
    parameters.push_back(p.tensor);
  }
  return parameters;
}

// The text of what LibTorch or the engine throws.
std::string text_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

TEST_P(OpenStep, AChangeOfGradientsIsThatOfThePlainModuleOrAnErrorAtTheCall) {
  on_all_stages(GetParam(), [](dist::Communicator& communicator, int stage) {
    for (const Change& change : kChanges) {
      SCOPED_TRACE(change.name);
      EngineRun run(communicator, {.overlap = {.stage = stage}}), undisturbed(communicator, {});
      std::vector<at::Tensor> parameters = parameters_in(run);
      run.engine.backward(run.forward(0));
      const std::string message = text_of([&] { change.make(parameters); });
      if (stage == 0) {
        EXPECT_EQ(message, "");
        EXPECT_TRUE(run.engine.step());
        EXPECT_TRUE(same_bits(run.weights(), plain_weights(communicator.size(), change.make)));
        continue;
      }
      EXPECT_THAT(message,
                  AllOf(HasSubstr("an access to the gradient of parameter '"),
                        HasSubstr("EngineConfig::clip_norm"), HasSubstr("give_up_step()")));
      // Nothing was damaged.
      EXPECT_TRUE(run.engine.step());
      undisturbed.step(0);
      EXPECT_TRUE(same_bits(run.weights(), undisturbed.weights()));
    }
  });
}

TEST_P(OpenStep, GradientsBetweenMicroBatchesAndUnderALossScaleAreHidden) {
  on_all_stages(GetParam(), [](dist::Communicator& communicator, int stage) {
    for (const bool scaled : {false, true}) {
      EngineRun run(communicator,
                    {.overlap = {.stage = stage},
                     .accumulation_steps = scaled ? 1 : 2,
                     .loss_scale = {.initial = scaled ? 8.0 : 0.0}},
                    optim::with_master_weights(optim::adamw()), at::kHalf);
      std::vector<at::Tensor> parameters = parameters_in(run);
      run.engine.backward(run.forward(0));
      for (const Change& change : kChanges) {
        EXPECT_THAT(text_of([&] { change.make(parameters); }),
                    HasSubstr("an access to the gradient of parameter '"))
            << change.name;
      }
    }
  });
}

TEST_P(OpenStep, TheStrategyClipsAndItsPiecesMayBeChanged) {
  on_all_stages(GetParam(), [](dist::Communicator& communicator, int stage) {
    EngineRun clipped(communicator, {.overlap = {.stage = stage}, .clip_norm = 0.01});
    EngineRun by_hand(communicator, {.overlap = {.stage = stage}});
    clipped.step(0);
    by_hand.engine.backward(by_hand.forward(0));
    EXPECT_EQ(by_hand.engine.strategy().clip_grad_norm(0.01), clipped.engine.gradient_norm());
    EXPECT_GT(clipped.engine.gradient_norm(), 0.02F);
    EXPECT_NEAR(by_hand.engine.strategy().clip_grad_norm(1), 0.01, 1e-6);  // changes nothing
    by_hand.engine.step();
    EXPECT_TRUE(same_bits(by_hand.weights(), clipped.weights()));

    EngineRun halved(communicator, {.overlap = {.stage = stage}});
    train::Strategy& strategy = halved.engine.strategy();
    halved.engine.backward(halved.forward(0));
    for (std::size_t i = 0; i < strategy.list().size(); ++i) {
      const at::Tensor mine = strategy.piece(i).tensor;
      if (mine.defined()) mine.mutable_grad().mul_(0.5);
    }
    halved.engine.step();
    const auto halve = [](std::vector<at::Tensor>& parameters) {
      for (const at::Tensor& p : parameters) p.mutable_grad().mul_(0.5);
    };
    EXPECT_TRUE(same_bits(halved.weights(), plain_weights(communicator.size(), halve)));
  });
}

// The gradients of the last micro-batch's backward() are those of the step already.
TEST_P(OpenStep, TheStrategyClipsMicroBatchesOfDifferentSizesAsStepDoes) {
  on_all_stages(GetParam(), [](dist::Communicator& communicator, int stage) {
    EngineConfig config{.overlap = {.stage = stage}, .accumulation_steps = 2};
    EngineRun by_hand(communicator, config);
    config.clip_norm = 0.01;
    EngineRun clipped(communicator, config);
    for (EngineRun* run : {&clipped, &by_hand}) {
      for (const int samples : {4, 3}) {
        run->engine.backward(run->engine.forward(run->toy.batch(run->rank, samples, samples)));
      }
    }
    const float norm = by_hand.engine.strategy().clip_grad_norm(0.01);
    EXPECT_TRUE(by_hand.engine.step());
    EXPECT_TRUE(clipped.engine.step());
    EXPECT_EQ(norm, clipped.engine.gradient_norm());
    EXPECT_TRUE(same_bits(by_hand.weights(), clipped.weights()));
  });
}

TEST_P(OpenStep, ZeroGradIsAnErrorOnAllRanksOrLeavesWeightsAsTheyAre) {
  on_all_stages(GetParam(), [](dist::Communicator& communicator, int stage) {
    for (const bool on_one_rank : {false, true}) {
      SCOPED_TRACE(on_one_rank);
      EngineRun run(communicator, {.overlap = {.stage = stage}});
      run.step(0);
      const std::vector<at::Tensor> before = run.weights();
      run.engine.backward(run.forward(1));
      if (!on_one_rank || communicator.rank() == 1) run.toy.model->zero_grad();
      const std::string ranks = on_one_rank                ? "on rank 1 "
                                : communicator.size() == 2 ? "on ranks 0, 1 "
                                                           : "on ranks 0, 1, 2 ";
      if (stage > 0) {
        expect_error([&] { run.engine.step(); },
                     {"the gradient of parameter 'layers.0.linear.weight' was set or reset " +
                          ranks + "between backward() and step()",
                      "give_up_step()"});
      } else if (on_one_rank) {
        expect_error([&] { run.engine.step(); },
                     {"what was done to gradients between backward() and step()",
                      "rank 1 has 'layers.0.linear.weight' reset"});
      } else {
        EXPECT_TRUE(run.engine.step());  // as an optimizer without gradients
      }
      EXPECT_TRUE(same_bits(run.weights(), before));
      EXPECT_TRUE(run.step(1));
      EXPECT_FALSE(same_bits(run.weights(), before));
    }
  });
}

TEST_P(OpenStep, ZeroGradBetweenMicroBatchesIsAnError) {
  on_all_stages(GetParam(), [](dist::Communicator& communicator, int stage) {
    const EngineConfig config{.overlap = {.stage = stage}, .accumulation_steps = 2};
    EngineRun run(communicator, config), undisturbed(communicator, config);
    run.engine.backward(run.forward(0));
    if (communicator.rank() == 0) run.toy.model->zero_grad();
    const auto second = [&] { run.engine.backward(run.forward(1)); };
    expect_error(second, {"was set or reset on rank 0 between backward() and step()"});
    run.engine.give_up_step();
    run.steps(0, 2);
    undisturbed.steps(0, 2);
    EXPECT_TRUE(same_bits(run.weights(), undisturbed.weights()));
  });
}

TEST_P(OpenStep, FreezingBetweenMicroBatchesIsAnError) {
  on_all_stages(GetParam(), [](dist::Communicator& communicator, int stage) {
    const EngineConfig config{.overlap = {.stage = stage}, .accumulation_steps = 2};
    EngineRun run(communicator, config), undisturbed(communicator, config);
    const at::Tensor frozen = parameters_in(run)[2];
    run.step(0);
    if (communicator.rank() == 1) frozen.requires_grad_(false);
    expect_error([&] { run.step(1); }, {"parameter 'layers.1.linear.weight' was frozen or unfrozen",
                                        "on rank 1 between two micro-batches of a step"});
    frozen.requires_grad_(true);
    EXPECT_TRUE(run.step(1));  // nothing was damaged
    undisturbed.steps(0, 2);
    EXPECT_TRUE(same_bits(run.weights(), undisturbed.weights()));
  });
}

TEST_P(OpenStep, FreezingOnSomeRanksIsAnErrorThatNamesParameterAndRank) {
  on_all_stages(GetParam(), [](dist::Communicator& communicator, int stage) {
    EngineRun run(communicator, {.overlap = {.stage = stage}});
    if (communicator.rank() == 1) parameters_in(run)[0].requires_grad_(false);
    expect_error([&] { run.step(0); }, {"ranks disagree about which parameters are trained",
                                        "rank 1 has parameter "
                                        "'layers.0.linear.weight' "
                                        "frozen"});
  });
}

}  // namespace
}  // namespace zero::testing
