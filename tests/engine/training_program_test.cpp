// What a training program asks of the engine, beside the model trained alone on the batches of all
// ranks: around a plain module, and around the same as a model of units.

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>

#include <tests/plain/plain_run.hpp>
#include <tests/support/engine_run.hpp>
#include <tests/support/error_of.hpp>
#include <tests/support/modes.hpp>
#include <tests/support/test_folder.hpp>
#include <zero/optim/norm.hpp>

namespace zero::testing {
namespace {

using ::testing::HasSubstr;
using Names = std::vector<std::string>;

ZERO_TESTS_ON_RANKS(TrainingProgram, 2, 3);

// `body` gets the module's name in plain_modules.hpp; parameters have the same names in both.
void on_both_models(
    int ranks,
    const std::function<void(dist::Communicator&, const std::string&, const EngineConfig&)>& body) {
  on_all_stages(ranks, [&](dist::Communicator& communicator, int stage) {
    for (const char* model : {"gpt2", "gpt2_of_units"}) {
      SCOPED_TRACE(model);
      body(communicator, model, at_stage(stage));
    }
  });
}

float norm_of_gradients(const std::vector<at::Tensor>& parameters) {
  std::vector<double> squares;
  for (const at::Tensor& p : parameters) squares.push_back(optim::squared_norm(p.grad()));
  return static_cast<float>(optim::norm_from_squares(squares));
}

TEST_P(TrainingProgram, HasTheMeanLossAndTheNormIfItAsks) {
  on_both_models(GetParam(), [](auto& communicator, const auto& model, EngineConfig config) {
    for (const double clip_norm : {0.0, 0.1}) {
      Alone alone(communicator.size(), model);
      config.clip_norm = clip_norm;
      PlainRun run(communicator, model, config, optim::adamw());
      std::vector<StepMetrics> seen;
      run.engine.on_step([&](const StepMetrics& metrics) { seen.push_back(metrics); });
      for (int number = 0; number < 3; ++number) {
        alone.backward(number);
        const float norm = norm_of_gradients(alone.parameters);
        if (clip_norm > 0) {
          const double factor = optim::clip_coefficient(norm, clip_norm);
          for (const at::Tensor& p : alone.parameters) p.mutable_grad().mul_(factor);
        }
        alone.update();
        EXPECT_TRUE(run.step(number));
        ASSERT_EQ(seen.size(), number + 1U);
        EXPECT_EQ(seen.back().step, number);
        EXPECT_TRUE(seen.back().updated);
        EXPECT_EQ(seen.back().loss, alone.mean_loss);
        EXPECT_EQ(seen.back().gradient_norm, norm);
        EXPECT_EQ(run.engine.gradient_norm(), norm);
        EXPECT_EQ(seen.back().learning_rates, std::vector{1e-3});
        EXPECT_GT(seen.back().seconds, seen.back().exposed_seconds);
        EXPECT_GT(seen.back().exposed_seconds, 0);
      }
      EXPECT_TRUE(same_bits(run.weights(), alone.parameters));
      run.engine.on_step({});
      run.step(3);
      EXPECT_EQ(seen.size(), 3U);
      EXPECT_EQ(run.engine.gradient_norm() == 0, clip_norm == 0);  // not asked for
    }
  });
}

// Micro-batches of other sizes on each rank: the mean is over all terms, as in tools::Trainer.
TEST_P(TrainingProgram, HearsTheMeanLossOverAllTerms) {
  on_all_stages(GetParam(), [](dist::Communicator& communicator, int stage) {
    for (int number = 0; number < 3; ++number) {
      EngineRun run(communicator, {.stage = stage, .accumulation_steps = 2});
      Toy toy;
      const auto strategy = make_strategy("ddp", {.module = *toy.model,
                                                  .mesh = communicator,
                                                  .optimizer = optim::adamw(),
                                                  .values = &toy.values});
      tools::Trainer trainer(*strategy, losses_of(*strategy));
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
    EngineRun run(communicator,
                  {.stage = stage, .on_nonfinite_gradient = train::OnNonfiniteGradient::kSkip});
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
  on_both_models(GetParam(), [](auto& communicator, const auto& model, const auto& config) {
    PlainRun run(communicator, model, config), undisturbed(communicator, model, at_stage(0));
    const bool other = communicator.rank() == 1;
    expect_error([&] { run.engine.on_step(other ? StepCallback() : [](const StepMetrics&) {}); },
                 {"on_step()", "rank 0 has a callback, rank 1 has no callback"});
    run.engine.on_step([&](const StepMetrics&) {
      if (other) throw std::runtime_error("no more");
    });
    expect_error([&] { run.step(0); }, {"the callback of a step: rank 1: no more"});
    run.engine.on_step({});
    run.backward(1);
    expect_error([&] { run.engine.on_step({}); }, {"on_step() in the middle of a step"});
    run.engine.step();
    for (const int number : {0, 1}) undisturbed.step(number);
    EXPECT_TRUE(same_bits(run.weights(), undisturbed.weights()));
  });
}

TEST_P(TrainingProgram, EvaluatesAtAnyTimeWithTheWeightsOfNow) {
  on_both_models(GetParam(), [](auto& communicator, const auto& model, const auto& config) {
    Alone alone(communicator.size(), model);
    PlainRun run(communicator, model, config, optim::adamw());
    const auto expect_same = [&] {
      at::manual_seed(3);
      const at::Tensor here = run.engine.evaluate(run.made.loss);
      at::manual_seed(3);
      EXPECT_TRUE(at::equal(here, alone.made.loss().detach()));
      EXPECT_FALSE(here.requires_grad());
    };
    for (int number = 0; number < 3; ++number) {
      expect_same();
      at::manual_seed(100 * number + run.rank);
      const at::Tensor loss = run.forward();
      expect_same();
      run.engine.backward(loss);
      expect_same();
      run.engine.step();
      alone.step(number);
    }
    EXPECT_TRUE(same_bits(run.weights(), alone.parameters));
  });
}

// ---- which parameters are trained, and how

TEST_P(TrainingProgram, HasGroupsByNameWithARateEach) {
  on_both_models(GetParam(), [](auto& communicator, const auto& model, const auto& config) {
    const std::vector<optim::AdamWOptions> options = {{.weight_decay = 0.1}, {.weight_decay = 0}};
    const PlainModule made = PlainRun::make(model);
    const auto rule = [](const std::string& name, const at::Tensor&) {
      return name.find("norm") == std::string::npos && !name.ends_with("bias") ? 0 : 1;
    };
    PlainRun run(communicator, made, config, optim::adamw(*made.module, options, rule));
    // The same groups, by hand.
    Alone alone(communicator.size(), model, [&](const std::vector<at::Tensor>& parameters) {
      optim::Group<optim::AdamWOptions> matrices{{}, options[0]}, others{{}, options[1]};
      for (const at::Tensor& p : parameters)
        (p.dim() > 1 ? matrices : others).parameters.push_back(p);
      EXPECT_FALSE(matrices.parameters.empty() || others.parameters.empty());
      return optim::make_adamw({matrices, others});
    });
    optim::Optimizer& optimizer = run.engine.strategy().optimizer();
    for (int number = 0; number < 4; ++number) {
      const std::vector<double> rates = {0.01 / (number + 1), 0.002 * number};
      optimizer.set_learning_rates(rates);
      alone.optimizer().set_learning_rates(rates);
      run.step(number);
      alone.step(number);
    }
    EXPECT_TRUE(same_bits(run.weights(), alone.parameters));
    expect_error([&] { optimizer.set_learning_rates({0.1}); },
                 {"1 learning rates for an optimizer with 2 parameter groups"});
    if (run.rank == 1) optimizer.set_learning_rates({0.0025, 0.3});
    expect_error([&] { run.step(4); },
                 {"the optimizer's settings", "rank 1 has learning_rate 0.3 in group 1"});
  });
}

TEST_P(TrainingProgram, RefusesGroupsThatDifferOnAllRanksByName) {
  on_ranks(GetParam(), [](dist::Communicator& communicator) {
    const bool other = communicator.rank() == 1;
    const PlainModule stranger = PlainRun::make("lstm");
    const auto expect_refused = [&](const optim::GroupRule& rule, const Names& says,
                                    const torch::nn::Module* of = nullptr) {
      for (const char* model : {"gpt2", "gpt2_of_units"}) {
        const PlainModule made = PlainRun::make(model);
        const auto optimizer = [&](const std::vector<at::Tensor>& parameters) {
          return optim::adamw(of == nullptr ? *made.module : *of, {{}, {}}, rule)(parameters);
        };
        expect_error([&] { PlainRun(communicator, made, {}, optimizer); }, says);
      }
    };
    const auto bias_in = [](std::size_t group) {
      return
          [group](const std::string& name, const auto&) { return name == "norm.bias" ? group : 0; };
    };
    expect_refused(bias_in(other ? 1 : 0), {"the optimizer and its parameter groups",
                                            "rank 0 has parameter 'norm.bias' in group 0",
                                            "rank 1 has parameter 'norm.bias' in group 1"});
    const std::string none = "parameter 'norm.bias' in group 2, and there are 2";
    expect_refused(bias_in(2), {none});
    expect_refused(bias_in(other ? 2 : 0), {"rank 1 has an error: " + none});
    expect_refused(bias_in(0), {"is not one of the module's"}, stranger.module.get());
  });
}

// On every rank an ignored parameter has values and a gradient of its own.
TEST_P(TrainingProgram, LeavesIgnoredParametersAlone) {
  const TestFolder folder;
  on_both_models(GetParam(), [&](auto& communicator, const auto& model, EngineConfig config) {
    // One of the root, one of each unit, and all of a unit.
    config.ignored = {"norm.bias", "blocks.*.norm1.weight", "blocks.1.*.*"};
    const auto ignores = [](const std::string& name) {
      return name == "norm.bias" || name.ends_with("norm1.weight") || name.starts_with("blocks.1.");
    };
    const auto value = [](int rank) { return 0.125 * (rank + 1); };
    const auto mark = [&](torch::nn::Module& module, int rank) {
      for (const auto& item : module.named_parameters()) {
        if (ignores(item.key())) item.value().detach().fill_(value(rank));
      }
    };
    const PlainModule made = PlainRun::make(model);
    mark(*made.module, communicator.rank());
    PlainRun run(communicator, made, config, optim::adamw());
    Alone alone(communicator.size(), model);
    std::vector<at::Tensor> others;
    for (const auto& item : alone.made.module->named_parameters()) {
      if (!ignores(item.key())) others.push_back(item.value());
    }
    alone.optimizer().narrow([&](const at::Tensor& p) {
      return std::ranges::any_of(others, [&](const at::Tensor& each) { return each.is_same(p); });
    });
    for (int number = 0; number < 3; ++number) {
      run.step(number);
      alone.backward(number, [&](int rank) { mark(*alone.made.module, rank); });
      alone.update();
    }
    run.engine.save(folder.path());
    EXPECT_TRUE(same_bits(run.weights(), others));
    for (const auto& item : made.module->named_parameters()) {
      if (!ignores(item.key())) continue;
      EXPECT_TRUE(item.value().eq(value(run.rank)).all().template item<bool>()) << item.key();
      EXPECT_TRUE(item.value().grad().defined()) << item.key();
    }
    EXPECT_TRUE(run.engine.load(folder.path()));
  });
}

// Two units read one weight, and only its second name is ignored: it is trained.
struct TiedLayers : torch::nn::Module {
  explicit TiedLayers(const at::Tensor& weight) {
    register_parameter("weight", weight);
    below = register_module("below", torch::nn::Linear(weight.size(1), weight.size(1)));
  }
  torch::nn::Linear below{nullptr};
};

TEST_P(TrainingProgram, TrainsAParameterOfWhichOneNameIsIgnored) {
  on_all_stages(GetParam(), [](dist::Communicator& communicator, int stage) {
    std::vector<at::Tensor> first;
    for (const Names& ignored : {Names(), Names{"head.weight"}}) {
      at::manual_seed(5);
      const auto net = std::make_shared<torch::nn::Module>();
      const auto stem = net->register_module("stem", torch::nn::Linear(8, 8));
      const auto head = net->register_module("head", std::make_shared<TiedLayers>(stem->weight));
      const auto loss = [&] {
        const at::Tensor x = head->below(stem->forward(at::randn({4, 8})).tanh());
        return at::linear(x, stem->weight).square().mean();
      };
      PlainRun run(communicator, {net, loss}, {.stage = stage, .ignored = ignored});
      for (int number = 0; number < 3; ++number) run.step(number);
      if (first.empty()) first = run.weights();
      EXPECT_TRUE(same_bits(run.weights(), first));
    }
  });
}

TEST_P(TrainingProgram, RefusesIgnoredNamesThatAreNotThereOrDifferOrHaveNoValues) {
  on_ranks(GetParam(), [](dist::Communicator& communicator) {
    const bool other = communicator.rank() == 1;
    const std::string message = "no parameter is named 'norm': it cannot be ignored";
    for (const char* model : {"gpt2", "gpt2_of_units"}) {
      const auto run_with = [&](const std::string& name) {
        PlainRun(communicator, model, {.ignored = {name}});
      };
      expect_error([&] { run_with("norm"); }, {message});
      expect_error([&] { run_with(other ? "norm" : "norm.bias"); },
                   {"rank 1 has an error: " + message});
      expect_error([&] { run_with(other ? "norm.weight" : "norm.bias"); }, {"norm.weight"});
    }
    for (const int stage : {0, 1, 2, 3}) {
      const auto net = nn::defer([] { return std::make_shared<torch::nn::LinearImpl>(4, 4); });
      const EngineConfig config{.stage = stage, .ignored = {"bias"}};
      expect_error(
          [&] {
            PlainRun(communicator, PlainModule{net, {}}, config);
          },
          {"the ignored parameter 'bias' has no values"});
    }
  });
}

}  // namespace
}  // namespace zero::testing
