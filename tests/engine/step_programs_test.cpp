// What a program does with gradients and parameters between backward() and step(), and how steps
// and micro-batches are counted. The measure is the plain module in one process, the trainer, or an
// engine that is used otherwise. Calls in other orders are a matter of tests/fuzz; what a program
// gets wrong is in refusals_test.cpp.

#include <fmt/format.h>
#include <torch/nn/utils/clip_grad.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include <tests/support/engine_run.hpp>
#include <tests/support/error_of.hpp>
#include <tests/support/hooked_optimizer.hpp>
#include <tests/support/modes.hpp>
#include <tests/support/plain_ranks.hpp>
#include <tests/support/random_model.hpp>
#include <tests/support/same_bits.hpp>
#include <tests/support/states.hpp>
#include <tests/support/thrown_by.hpp>
#include <zero/optim/master_weights.hpp>

namespace zero::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

ZERO_TESTS_ON_RANKS(StepPrograms, 2, 3);

using Change = std::function<void(const std::vector<at::Tensor>& parameters)>;

// The weights of the plain module after a step on the batches of all ranks, with `change` before
// the update.
std::vector<at::Tensor> plain_weights(int ranks, const Change& change) {
  const Toy toy = Toy::alone();
  const std::vector<at::Tensor> parameters = parameters_of(*toy.model);
  PlainRanks trained(parameters, ranks, optim::adamw());
  trained.backward([&](int rank) { return data::loss_of(*toy.model, toy.batch(rank, 0)); });
  trained.average();
  change(parameters);
  trained.update();
  return parameters;
}

// What loops of PyTorch do with gradients between backward() and step().
const std::map<std::string, Change> kChanges = {
    {"clip_grad_norm_", [](auto& p) { torch::nn::utils::clip_grad_norm_(p, /*max_norm=*/0.01); }},
    {"clip_grad_value_",
     [](auto& p) { torch::nn::utils::clip_grad_value_(p, /*clip_value=*/0.01); }},
    {"mul_", [](auto& p) { p[1].mutable_grad().mul_(0.5); }},
    {"add_", [](auto& p) { p[0].mutable_grad() += 0.1; }},
    {"another tensor", [](auto& p) { p[2].mutable_grad() = p[2].grad() * 2; }},
};

std::vector<at::Tensor> parameters_in(EngineRun& run) {
  std::vector<at::Tensor> parameters;
  for (const nn::Parameter& p : run.engine.strategy().list().parameters) {
    parameters.push_back(p.tensor);
  }
  return parameters;
}

// Gradients are hidden where they are not whole, not all there, or scaled.
TEST_P(StepPrograms, AChangeOfGradientsIsThatOfThePlainModuleOrAnErrorAtTheCall) {
  on_all_stages(GetParam(), [](dist::Communicator& communicator, int stage) {
    for (EngineConfig config : {EngineConfig{}, EngineConfig{.accumulation_steps = 2},
                                EngineConfig{.loss_scale = {.initial = 8}}}) {
      config.stage = stage;
      const bool scaled = config.loss_scale.initial > 0, several = config.accumulation_steps > 1;
      const auto optimizer = scaled ? optim::with_master_weights(optim::adamw()) : optim::adamw();
      const auto dtype = scaled ? at::kHalf : at::kFloat;
      for (const auto& [name, change] : kChanges) {
        SCOPED_TRACE(fmt::format("{}, {}", name, scaled ? "scaled" : several ? "several" : ""));
        EngineRun run(communicator, config, optimizer, dtype);
        run.engine.backward(run.forward(0));
        const std::string message =
            thrown_by([&, &change = change] { change(parameters_in(run)); });
        EXPECT_EQ(run.engine.step(), !several);
        if (stage == 0 && !scaled && !several) {
          EXPECT_EQ(message, "");
          EXPECT_TRUE(same_bits(run.weights(), plain_weights(communicator.size(), change)));
          continue;
        }
        EXPECT_THAT(message,
                    AllOf(HasSubstr("an access to the gradient of parameter '"),
                          HasSubstr("EngineConfig::clip_norm"), HasSubstr("give_up_step()")));
        // Nothing was damaged.
        EngineRun undisturbed(communicator, config, optimizer, dtype);
        undisturbed.steps(0, 2);
        run.step(1);
        EXPECT_TRUE(same_bits(run.weights(), undisturbed.weights()));
      }
    }
  });
}

// Also of micro-batches of different sizes: the gradients of the last one's backward() are those of
// the step already.
TEST_P(StepPrograms, TheStrategyClipsAsStepDoes) {
  on_all_stages(GetParam(), [](dist::Communicator& communicator, int stage) {
    for (const auto& samples : {std::vector{4}, std::vector{4, 3}}) {
      EngineConfig config{.stage = stage,
                          .accumulation_steps = static_cast<std::int64_t>(samples.size())};
      EngineRun by_hand(communicator, config);
      config.clip_norm = 0.01;
      EngineRun clipped(communicator, config);
      for (EngineRun* run : {&clipped, &by_hand}) {
        for (const int n : samples) {
          run->engine.backward(forward_batch(run->engine, run->toy.batch(run->rank, n, n)));
        }
      }
      EXPECT_TRUE(clipped.engine.step());
      EXPECT_GT(clipped.engine.gradient_norm(), 0.02F);
      train::Strategy& strategy = by_hand.engine.strategy();
      EXPECT_EQ(strategy.clip_grad_norm(0.01), clipped.engine.gradient_norm());
      EXPECT_NEAR(strategy.clip_grad_norm(1), 0.01, 1e-6);  // changes nothing
      EXPECT_TRUE(by_hand.engine.step());
      EXPECT_TRUE(same_bits(by_hand.weights(), clipped.weights()));
    }
  });
}

// The program's own backward: its gradients are dropped, and their buffers before the next forward.
// The states of a parameter that is frozen later are still counted.
TEST_P(StepPrograms, MemoryIsThatOfTheFormulasAfterOtherBackwardsAndFreezing) {
  on_all_stages(GetParam(), [](dist::Communicator& communicator, int stage) {
    const memory::Snapshot before = memory::snapshot();
    EngineRun run(communicator, {.stage = stage, .keep_gradients = false});
    run.step(0);
    data::loss_of(*run.toy.model, run.toy.batch(run.rank, 1)).backward();
    const at::Tensor loss = run.forward(2);
    EXPECT_EQ(states_since(before).gradients, 0);
    for (const at::Tensor& p : parameters_in(run)) p.set_requires_grad(false);
    EXPECT_EQ(states_since(before).optimizer, run.engine.strategy().costs().at_rest.optimizer);
  });
}

// Batches that state the same number of terms and batches that state none; losses from forward()
// and the program's own, on all ranks or on some, in all micro-batches or in some.
TEST_P(StepPrograms, WithoutLossTermsMicroBatchesCountAlike) {
  on_all_stages(GetParam(), [](dist::Communicator& communicator, int stage) {
    const EngineConfig config{.stage = stage, .accumulation_steps = 2};
    EngineRun stated(communicator, config), silent(communicator, config);
    EngineRun everywhere(communicator, config), on_some(communicator, config);
    const auto own = [](EngineRun& run, const data::Batch& b) {
      return data::loss_of(*run.toy.model, b);
    };
    const auto unsaid = [&own](EngineRun& run, const data::Batch& b) {
      return run.engine.forward([&] { return own(run, b); });
    };
    for (int m = 0; m < 4; ++m) {
      // With one sample, the toy's loss is the mean if it is told so, and if it is not.
      const data::Batch batch = stated.toy.batch(stated.rank, m, /*samples=*/1);
      stated.engine.backward(forward_batch(stated.engine, batch));
      silent.engine.backward(unsaid(silent, batch));
      everywhere.engine.backward(own(everywhere, batch));
      const bool is_own = stage < 3 && (communicator.rank() + m) % 2 == 0;
      on_some.engine.backward(is_own ? own(on_some, batch) : unsaid(on_some, batch));
      for (EngineRun* run : {&stated, &silent, &everywhere, &on_some}) {
        EXPECT_EQ(run->engine.step(), m % 2 == 1);
      }
    }
    for (EngineRun* run : {&silent, &everywhere, &on_some}) {
      EXPECT_TRUE(same_bits(run->weights(), stated.weights()));
    }
  });
}

TEST_P(StepPrograms, AGradientIsSeenWithoutTheLossScale) {
  on_all_stages(GetParam(), [](dist::Communicator& communicator, int stage) {
    std::vector<double> norms;
    for (const double scale : {1.0, 8.0}) {
      EngineRun run(communicator, {.stage = stage, .loss_scale = {.initial = scale}},
                    optim::with_master_weights(optim::adamw()), at::kHalf);
      run.engine.backward(run.forward(0));
      const std::string& name = run.engine.strategy().list().parameters[0].name;
      norms.push_back(run.engine.gradient(name).to(at::kDouble).norm().item<double>());
    }
    EXPECT_GT(norms[0], 0);
    EXPECT_NEAR(norms[1] / norms[0], 1, 0.01);
  });
}

}  // namespace
}  // namespace zero::testing
