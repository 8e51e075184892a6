// What a training program asks of the engine around a model with units of its own: evaluation,
// autocast, and what it hears of each step.

#include <gmock/gmock.h>

#include <tests/support/autocast.hpp>
#include <tests/support/average_over_ranks.hpp>
#include <tests/support/engine_run.hpp>
#include <tests/support/error_of.hpp>
#include <tests/support/modes.hpp>
#include <tests/support/same_bits.hpp>
#include <zero/nn/functional.hpp>
#include <zero/nn/llama.hpp>
#include <zero/train/loop/trainer.hpp>

namespace zero::testing {
namespace {

using ::testing::HasSubstr;

ZERO_TESTS_ON_RANKS(TrainingProgram, 2, 3);

// One step of a model alone on the batches of all ranks.
void step_alone(nn::Model& model, optim::Optimizer& optimizer, int ranks,
                const std::function<at::Tensor(int rank)>& loss) {
  const std::vector<at::Tensor> parameters = parameters_of(model);
  average_over_ranks(parameters, ranks, [&](int rank) { loss(rank).backward(); });
  optimizer.step();
  for (const at::Tensor& p : parameters) p.mutable_grad().reset();
}

TEST_P(TrainingProgram, PredictsAndEvaluatesAtAnyTime) {
  on_all_stages(GetParam(), [](dist::Communicator& communicator, int stage) {
    Toy toy = Toy::alone();
    const auto optimizer = optim::adamw()(parameters_of(*toy.model));
    EngineRun run(communicator, {.overlap = {.stage = stage}});
    const data::Batch batch = toy.batch(communicator.rank(), 9);
    const auto expect_same = [&] {
      const at::Tensor predicted =
          run.engine.evaluate([&] { return run.toy.model->predict(batch); });
      const at::Tensor loss = run.engine.evaluate([&] { return run.toy.model->loss(batch); });
      EXPECT_FALSE(predicted.requires_grad() || loss.requires_grad());
      EXPECT_TRUE(at::equal(predicted, toy.model->predict(batch).detach()));
      EXPECT_TRUE(at::equal(loss, toy.model->loss(batch).detach()));
    };
    for (int number = 0; number < 3; ++number) {
      expect_same();
      const at::Tensor loss = run.forward(number);
      expect_same();
      run.engine.backward(loss);
      expect_same();
      run.engine.step();
      step_alone(*toy.model, *optimizer, communicator.size(),
                 [&](int r) { return toy.model->loss(toy.batch(r, number)); });
    }
    EXPECT_TRUE(same_bits(run.weights(), parameters_of(*toy.model)));
  });
}

TEST_P(TrainingProgram, WhereOneRankEvaluatesAllHearOfIt) {
  const auto exits = ranks_ended({.world_size = GetParam()}, [](dist::Communicator& communicator) {
    EngineRun run(communicator, {.overlap = {.stage = 3}});
    run.step(0);
    if (communicator.rank() == 1) {
      run.engine.evaluate([&] { return run.toy.model->predict(run.toy.batch(1, 1)); });
    }
    run.step(1);
  });
  expect_errors(exits, HasSubstr("Engine::evaluate"));
}

// Micro-batches of other sizes on each rank: the mean is over all terms, as in train::Trainer.
TEST_P(TrainingProgram, HearsTheMeanLossOverAllTerms) {
  on_all_stages(GetParam(), [](dist::Communicator& communicator, int stage) {
    for (int number = 0; number < 3; ++number) {
      EngineRun run(communicator, {.overlap = {.stage = stage}, .accumulation_steps = 2});
      Toy toy;
      const auto strategy = make_strategy("ddp", {.model = *toy.model,
                                                  .mesh = communicator,
                                                  .optimizer = optim::adamw(),
                                                  .values = &toy.values});
      train::Trainer trainer(*strategy);
      StepMetrics heard;
      run.engine.on_step([&](const StepMetrics& metrics) { heard = metrics; });
      const std::vector<data::Batch> batches = {toy.batch(run.rank, 2 * number, 3 + run.rank),
                                                toy.batch(run.rank, 2 * number + 1, 2)};
      EXPECT_FALSE(run.step(batches[0]));
      EXPECT_TRUE(run.step(batches[1]));
      EXPECT_EQ(heard.loss, trainer.step(batches).loss);
      const int ranks = communicator.size();
      EXPECT_EQ(heard.loss_terms, 5 * ranks + ranks * (ranks - 1) / 2);
    }
  });
}

TEST_P(TrainingProgram, HearsOfASkippedStep) {
  on_all_stages(GetParam(), [](dist::Communicator& communicator, int stage) {
    EngineRun run(communicator, {.overlap = {.stage = stage},
                                 .on_nonfinite_gradient = train::OnNonfiniteGradient::kSkip});
    StepMetrics last;
    run.engine.on_step([&](const StepMetrics& metrics) { last = metrics; });
    run.step(0);
    EXPECT_GT(last.gradient_norm, 0);
    run.make_gradient_infinite(communicator.rank() == 1);
    EXPECT_FALSE(run.step(1));
    EXPECT_FALSE(last.updated);
    EXPECT_EQ(last.gradient_norm, 0);
    EXPECT_EQ(last.step, 1);
  });
}

TEST_P(TrainingProgram, ACallbackThatThrowsOrIsMissingOnOneRankIsAnErrorOnAll) {
  on_all_stages(GetParam(), [](dist::Communicator& communicator, int stage) {
    EngineRun run(communicator, {.overlap = {.stage = stage}}), undisturbed(communicator, {});
    const bool other = communicator.rank() == 1;
    expect_error([&] { run.engine.on_step(other ? StepCallback() : [](const StepMetrics&) {}); },
                 {"on_step()", "rank 0 has a callback, rank 1 has no callback"});
    run.engine.on_step([&](const StepMetrics&) {
      if (other) throw std::runtime_error("no more");
    });
    expect_error([&] { run.step(0); }, {"the callback of a step: rank 1: no more"});
    run.engine.on_step({});
    const at::Tensor loss = run.forward(1);
    run.engine.backward(loss);
    expect_error([&] { run.engine.on_step({}); }, {"on_step() in the middle of a step"});
    run.engine.step();
    undisturbed.steps(0, 2);
    EXPECT_TRUE(same_bits(run.weights(), undisturbed.weights()));
  });
}

TEST_P(TrainingProgram, WhereOneRankCallsOnStepAllHearOfIt) {
  const auto exits = ranks_ended({.world_size = GetParam()}, [](dist::Communicator& communicator) {
    EngineRun run(communicator, {.overlap = {.stage = 1}});
    if (communicator.rank() == 1) run.engine.on_step([](const StepMetrics&) {});
    run.step(0);
  });
  expect_errors(exits, HasSubstr("Engine::on_step"));
}

TEST_P(TrainingProgram, IgnoresAParameterOfAUnit) {
  on_all_stages(GetParam(), [](dist::Communicator& communicator, int stage) {
    const std::string name = "layers.1.linear.weight";
    const auto mark = [&](nn::Model& model, int rank) {
      model.named_parameters()[name].detach().fill_(0.1 * (rank + 1));
    };
    Toy here = Toy::alone(), alone = Toy::alone();
    mark(*here.model, communicator.rank());
    const at::Tensor own = alone.model->named_parameters()[name];
    const auto optimizer = optim::adamw()(parameters_of(*alone.model));
    optimizer->narrow([&](const at::Tensor& p) { return !p.is_same(own); });
    Engine engine(*here.model, communicator, optim::adamw(),
                  {.overlap = {.stage = stage}, .ignored = {name}});
    for (int number = 0; number < 3; ++number) {
      engine.backward(engine.forward(here.batch(communicator.rank(), number)));
      engine.step();
      step_alone(*alone.model, *optimizer, communicator.size(), [&](int r) {
        mark(*alone.model, r);
        return alone.model->loss(alone.batch(r, number));
      });
    }
    std::vector<at::Tensor> others = parameters_of(*alone.model);
    std::erase_if(others, [&](const at::Tensor& p) { return p.is_same(own); });
    EXPECT_TRUE(same_bits(whole_weights(engine.strategy()), others));
    const at::Tensor left = here.model->named_parameters()[name];
    EXPECT_TRUE(left.eq(0.1 * (communicator.rank() + 1)).all().item<bool>());
    EXPECT_TRUE(left.grad().defined());
  });
}

// ---- autocast

template <typename Model>
void expect_bits_of_the_model_alone(dist::Communicator& communicator, int stage, Model& model,
                                    Model& alone,
                                    const std::function<data::Batch(int, int)>& batch) {
  nn::SeededValues values(5), same(5);
  nn::initialize_parameters(alone, same);
  const auto optimizer = optim::adamw()(parameters_of(alone));
  Engine engine(model, communicator, optim::adamw(), {.overlap = {.stage = stage}}, &values);
  for (int number = 0; number < 3; ++number) {
    at::Tensor loss;
    {
      const Autocast autocast;
      loss = engine.forward(batch(communicator.rank(), number));
    }
    engine.backward(loss);
    engine.step();
    step_alone(alone, *optimizer, communicator.size(), [&](int r) {
      const Autocast autocast;
      return alone.loss(batch(r, number));
    });
  }
  EXPECT_TRUE(same_bits(whole_weights(engine.strategy()), parameters_of(alone)));
}

TEST_P(TrainingProgram, HasTheBitsOfTheModelAloneUnderAutocast) {
  on_all_stages(GetParam(), [](dist::Communicator& communicator, int stage) {
    Toy mlp, mlp_alone;
    expect_bits_of_the_model_alone(communicator, stage, *mlp.model, *mlp_alone.model,
                                   [&](int r, int n) { return mlp.batch(r, n); });
    const nn::LlamaConfig config{.vocabulary = 31, .hidden = 16, .mlp = 21};
    const auto llama = make_deferred<nn::Llama>(config), alone = make_deferred<nn::Llama>(config);
    expect_bits_of_the_model_alone(communicator, stage, *llama, *alone, [](int r, int n) {
      at::manual_seed(static_cast<std::uint64_t>(100 * n + r));
      const at::Tensor ids = at::randint(31, {2, 9}, at::kLong);
      return data::Batch{.inputs = ids.narrow(1, 0, 8).contiguous(),
                         .targets = ids.narrow(1, 1, 8).contiguous(),
                         .loss_terms = 16};
    });
  });
}

// The linear layer is at::linear() then, forward and backward.
TEST(LinearUnderAutocast, IsThatOfLibTorch) {
  const at::Tensor x = at::randn({5, 7}), weight = at::randn({3, 7}), bias = at::randn({3});
  std::vector<at::Tensor> results;
  for (const bool ours : {false, true}) {
    const at::Tensor w = weight.clone().requires_grad_(), b = bias.clone().requires_grad_();
    const at::Tensor in = x.clone().requires_grad_();
    {
      const Autocast autocast;
      const at::Tensor y = ours ? nn::linear(in, w, b) : at::linear(in, w, b);
      EXPECT_EQ(y.scalar_type(), at::kBFloat16);
      y.square().sum().backward();
    }
    for (const at::Tensor& t : {in, w, b}) results.push_back(t.grad());
  }
  for (std::size_t i = 0; i < 3; ++i) EXPECT_TRUE(at::equal(results[i], results[i + 3]));
}

}  // namespace
}  // namespace zero::testing
