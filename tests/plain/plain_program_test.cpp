// What a training program asks of the engine around a plain module, beside the module trained alone
// on the batches of all ranks.

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/utils/clip_grad.h>

#include <tests/support/autocast.hpp>
#include <tests/support/error_of.hpp>
#include <tests/support/modes.hpp>
#include <tests/support/same_bits.hpp>
#include <tests/support/test_folder.hpp>
#include <tests/support/whole_weights.hpp>
#include <zero/engine/engine.hpp>
#include <zero/optim/master_weights.hpp>
#include <zero/optim/norm.hpp>

#include "plain_modules.hpp"

namespace zero::testing {
namespace {

using ::testing::HasSubstr;

ZERO_TESTS_ON_RANKS(PlainProgram, 2, 3);

constexpr const char* kModule = "gpt2";

PlainModule make(const std::string& name) {
  at::manual_seed(7);
  return plain_case(name).make();
}

// A module and an optimizer, without an engine.
struct Alone {
  Alone(int rank_count, const optim::OptimizerFactory& optimizer, const std::string& name = kModule)
      : ranks(rank_count),
        made(make(name)),
        parameters(made.module->parameters()),
        update(optimizer(parameters)) {}

  // The averaged gradients of step `number`; `before` is called for each rank.
  void backward(
      int number, const std::function<void(int)>& before = [](int) {}) {
    std::vector<at::Tensor> sums(parameters.size());
    mean_loss = 0;
    for (int r = 0; r < ranks; ++r) {
      before(r);
      at::manual_seed(static_cast<std::uint64_t>(100 * number + r));
      const at::Tensor loss = made.loss();
      loss.backward();
      mean_loss += loss.item<double>();
      for (std::size_t i = 0; i < sums.size(); ++i) {
        const at::Tensor mine = std::exchange(parameters[i].mutable_grad(), at::Tensor());
        if (mine.defined()) sums[i] = sums[i].defined() ? sums[i] + mine : mine;
      }
    }
    mean_loss /= ranks;
    for (std::size_t i = 0; i < sums.size(); ++i) {
      if (sums[i].defined()) parameters[i].mutable_grad() = sums[i] / ranks;
    }
  }
  void step() {
    update->step();
    for (const at::Tensor& p : parameters) p.mutable_grad().reset();
  }
  float norm() const {
    std::vector<double> squares;
    for (const at::Tensor& p : parameters) {
      squares.push_back(p.grad().defined() ? optim::squared_norm(p.grad()) : 0);
    }
    return static_cast<float>(optim::norm_from_squares(squares));
  }

  int ranks;
  PlainModule made;
  std::vector<at::Tensor> parameters;
  std::unique_ptr<optim::Optimizer> update;
  double mean_loss = 0;
};

struct Engined {
  Engined(
      dist::Communicator& communicator, const EngineConfig& config,
      const std::function<optim::OptimizerFactory(const torch::nn::Module&)>& optimizer =
          [](const auto&) { return optim::adamw(); },
      const std::string& name = kModule)
      : rank(communicator.rank()),
        made(make(name)),
        engine(*made.module, communicator, optimizer(*made.module), config,
               plain_case(name).units) {}
  void backward(int number) {
    at::manual_seed(static_cast<std::uint64_t>(100 * number + rank));
    engine.backward(engine.forward(made.loss));
  }
  bool step(int number) {
    backward(number);
    return engine.step();
  }
  std::vector<at::Tensor> weights() { return whole_weights(engine.strategy()); }

  int rank;
  PlainModule made;
  Engine engine;
};

TEST_P(PlainProgram, HasTheMeanLossAndTheNormIfItAsks) {
  on_all_stages(GetParam(), [](dist::Communicator& communicator, int stage) {
    for (const double clip_norm : {0.0, 0.1}) {
      Alone alone(communicator.size(), optim::adamw());
      Engined run(communicator, {.overlap = {.stage = stage}, .clip_norm = clip_norm});
      std::vector<StepMetrics> seen;
      run.engine.on_step([&](const StepMetrics& metrics) { seen.push_back(metrics); });
      for (int number = 0; number < 3; ++number) {
        alone.backward(number);
        const float norm = alone.norm();
        if (clip_norm > 0) {
          const double factor = optim::clip_coefficient(norm, clip_norm);
          for (const at::Tensor& p : alone.parameters) p.mutable_grad().mul_(factor);
        }
        alone.step();
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

TEST_P(PlainProgram, HasGroupsByNameWithARateEach) {
  on_all_stages(GetParam(), [](dist::Communicator& communicator, int stage) {
    const std::vector<optim::AdamWOptions> options = {{.weight_decay = 0.1}, {.weight_decay = 0}};
    Engined run(communicator, {.overlap = {.stage = stage}}, [&](const torch::nn::Module& module) {
      return optim::adamw(module, options, [](const std::string& name, const at::Tensor&) {
        return name.find("norm") == std::string::npos && !name.ends_with("bias") ? 0 : 1;
      });
    });
    // The same groups, by hand.
    Alone alone(communicator.size(), [&](const std::vector<at::Tensor>& parameters) {
      optim::Group<optim::AdamWOptions> matrices{{}, options[0]}, others{{}, options[1]};
      for (const at::Tensor& p : parameters)
        (p.dim() > 1 ? matrices : others).parameters.push_back(p);
      EXPECT_FALSE(matrices.parameters.empty() || others.parameters.empty());
      return optim::make_adamw({matrices, others});
    });
    for (int number = 0; number < 4; ++number) {
      const std::vector<double> rates = {0.01 / (number + 1), 0.002 * number};
      run.engine.strategy().optimizer().set_learning_rates(rates);
      alone.update->set_learning_rates(rates);
      run.step(number);
      alone.backward(number);
      alone.step();
    }
    EXPECT_TRUE(same_bits(run.weights(), alone.parameters));
    expect_error([&] { run.engine.strategy().optimizer().set_learning_rates({0.1}); },
                 {"1 learning rates for an optimizer with 2 parameter groups"});
    if (communicator.rank() == 1) {
      run.engine.strategy().optimizer().set_learning_rates({0.0025, 0.3});
    }
    expect_error([&] { run.step(4); },
                 {"the optimizer's settings", "rank 1 has learning_rate 0.3 in group 1"});
  });
}

TEST_P(PlainProgram, RefusesGroupsThatDifferOnAllRanksByName) {
  on_ranks(GetParam(), [](dist::Communicator& communicator) {
    const bool other = communicator.rank() == 1;
    const auto run_with = [&](const optim::GroupRule& rule) {
      const Engined run(communicator, {}, [&](const torch::nn::Module& module) {
        return optim::adamw(module, {{}, {}}, rule);
      });
    };
    expect_error(
        [&] {
          run_with([&](const std::string& name, const at::Tensor&) -> std::size_t {
            return other && name == "norm.bias" ? 1 : 0;
          });
        },
        {"the optimizer and its parameter groups", "rank 0 has parameter 'norm.bias' in group 0",
         "rank 1 has parameter 'norm.bias' in group 1"});
    const auto none = [&](const std::string& name, const at::Tensor&) -> std::size_t {
      return name == "norm.bias" ? 2 : 0;
    };
    expect_error([&] { run_with(none); }, {"parameter 'norm.bias' in group 2, and there are 2"});
    expect_error(
        [&] {
          run_with([&](const std::string& name, const at::Tensor& p) -> std::size_t {
            return other ? none(name, p) : 0;
          });
        },
        {"rank 1 has an error: parameter 'norm.bias' in group 2, and there are 2"});
    const PlainModule stranger = make("lstm");
    expect_error(
        [&] {
          const Engined run(communicator, {}, [&](const torch::nn::Module&) {
            return optim::adamw(*stranger.module, {{}}, [](const auto&, const auto&) { return 0; });
          });
        },
        {"is not one of the module's"});
  });
}

TEST_P(PlainProgram, EvaluatesAtAnyTimeWithTheWeightsOfNow) {
  on_all_stages(GetParam(), [](dist::Communicator& communicator, int stage) {
    Alone alone(communicator.size(), optim::adamw());
    Engined run(communicator, {.overlap = {.stage = stage}});
    const auto expect_same = [&] {
      at::manual_seed(3);
      const at::Tensor here = run.engine.evaluate(run.made.loss);
      at::manual_seed(3);
      EXPECT_TRUE(at::equal(here, alone.made.loss().detach()));
      EXPECT_FALSE(here.requires_grad());
    };
    for (int number = 0; number < 3; ++number) {
      expect_same();
      run.backward(number);
      expect_same();
      run.engine.step();
      alone.backward(number);
      alone.step();
    }
    EXPECT_TRUE(same_bits(run.weights(), alone.parameters));
  });
}

// On every rank an ignored parameter has values and a gradient of its own.
TEST_P(PlainProgram, LeavesIgnoredParametersAlone) {
  const TestFolder folder;
  on_all_stages(GetParam(), [&](dist::Communicator& communicator, int stage) {
    // One of the root, one of each unit, and all of a unit.
    const std::vector<std::string> names = {"norm.bias", "blocks.*.norm1.weight", "blocks.1.*.*"};
    const auto ignores = [](const std::string& name) {
      return name == "norm.bias" || name.ends_with("norm1.weight") || name.starts_with("blocks.1.");
    };
    const auto value = [](int rank) { return 0.125 * (rank + 1); };
    const auto mark = [&](torch::nn::Module& module, int rank) {
      for (const auto& item : module.named_parameters()) {
        if (ignores(item.key())) item.value().detach().fill_(value(rank));
      }
    };
    const PlainModule made = make(kModule);
    mark(*made.module, communicator.rank());
    Engine engine(*made.module, communicator, optim::adamw(),
                  {.overlap = {.stage = stage}, .ignored = names}, plain_case(kModule).units);
    Alone alone(communicator.size(), optim::adamw());
    alone.update->narrow([&](const at::Tensor& p) {
      const auto all = alone.made.module->named_parameters();
      return std::ranges::none_of(
          all, [&](const auto& item) { return item.value().is_same(p) && ignores(item.key()); });
    });
    for (int number = 0; number < 3; ++number) {
      at::manual_seed(static_cast<std::uint64_t>(100 * number + communicator.rank()));
      engine.backward(engine.forward(made.loss));
      engine.step();
      alone.backward(number, [&](int rank) { mark(*alone.made.module, rank); });
      alone.step();
    }
    engine.save(folder.path());
    std::vector<at::Tensor> others;
    for (const auto& item : alone.made.module->named_parameters()) {
      if (!ignores(item.key())) others.push_back(item.value());
    }
    EXPECT_TRUE(same_bits(whole_weights(engine.strategy()), others));
    for (const auto& item : made.module->named_parameters()) {
      if (!ignores(item.key())) continue;
      EXPECT_TRUE(item.value().eq(value(communicator.rank())).all().item<bool>()) << item.key();
      EXPECT_TRUE(item.value().grad().defined()) << item.key();
    }
    EXPECT_TRUE(engine.load(folder.path()));
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

TEST_P(PlainProgram, TrainsAParameterOfWhichOneNameIsIgnored) {
  on_all_stages(GetParam(), [](dist::Communicator& communicator, int stage) {
    std::vector<at::Tensor> first;
    for (const std::vector<std::string>& ignored : {{}, std::vector<std::string>{"head.weight"}}) {
      at::manual_seed(5);
      torch::nn::Module net;
      const auto stem = net.register_module("stem", torch::nn::Linear(8, 8));
      const auto head = net.register_module("head", std::make_shared<TiedLayers>(stem->weight));
      Engine engine(net, communicator, optim::adamw(),
                    {.overlap = {.stage = stage}, .ignored = ignored}, nn::default_units(1));
      for (int number = 0; number < 3; ++number) {
        at::manual_seed(static_cast<std::uint64_t>(100 * number + communicator.rank()));
        engine.backward(engine.forward([&] {
          const at::Tensor x = head->below(stem->forward(at::randn({4, 8})).tanh());
          return at::linear(x, stem->weight).square().mean();
        }));
        engine.step();
      }
      if (first.empty()) first = whole_weights(engine.strategy());
      EXPECT_TRUE(same_bits(whole_weights(engine.strategy()), first));
    }
  });
}

TEST_P(PlainProgram, RefusesToIgnoreAParameterWithoutValues) {
  on_all_stages(GetParam(), [](dist::Communicator& communicator, int stage) {
    const auto net = nn::defer([] { return std::make_shared<torch::nn::LinearImpl>(4, 4); });
    expect_error(
        [&] {
          const Engine engine(*net, communicator, optim::adamw(),
                              {.overlap = {.stage = stage}, .ignored = {"bias"}});
        },
        {"the ignored parameter 'bias' has no values"});
  });
}

TEST_P(PlainProgram, RefusesIgnoredNamesThatAreNotThereOrDiffer) {
  on_ranks(GetParam(), [](dist::Communicator& communicator) {
    const auto run_with = [&](const std::string& name) {
      const Engined run(communicator, {.ignored = {name}});
    };
    const bool other = communicator.rank() == 1;
    const std::string message = "no parameter is named 'norm': it cannot be ignored";
    expect_error([&] { run_with("norm"); }, {message});
    expect_error([&] { run_with(other ? "norm" : "norm.bias"); }, {"rank 1 has " + message});
    expect_error([&] { run_with(other ? "norm.weight" : "norm.bias"); }, {"norm.weight"});
  });
}

TEST_P(PlainProgram, FreezesAndUnfreezesBetweenSteps) {
  on_all_stages(GetParam(), [](dist::Communicator& communicator, int stage) {
    Alone alone(communicator.size(), optim::adamw());
    Engined run(communicator, {.overlap = {.stage = stage}});
    const auto freeze = [](torch::nn::Module& module, const std::string& prefix, bool frozen) {
      for (const auto& item : module.named_parameters()) {
        if (item.key().starts_with(prefix)) item.value().requires_grad_(!frozen);
      }
    };
    for (int number = 0; number < 6; ++number) {
      for (torch::nn::Module* module : {alone.made.module.get(), run.made.module.get()}) {
        freeze(*module, "blocks.0", number == 1 || number == 2);
        freeze(*module, "norm", number % 2 == 1);
        // A part of a unit: zeros travel for it in a bucket with the others' gradients.
        freeze(*module, "blocks.1.up", number == 3 || number == 4);
      }
      alone.backward(number);
      alone.step();
      run.step(number);
      EXPECT_TRUE(same_bits(run.weights(), alone.parameters)) << number;
    }
  });
}

TEST_P(PlainProgram, ClipsByItselfAtStage0AndElsewhereHearsHow) {
  on_all_stages(GetParam(), [](dist::Communicator& communicator, int stage) {
    Alone alone(communicator.size(), optim::adamw());
    Engined run(communicator, {.overlap = {.stage = stage}});
    alone.backward(0);
    run.backward(0);
    std::string message;
    try {
      torch::nn::utils::clip_grad_norm_(run.made.module->parameters(), 0.01);
    } catch (const std::exception& error) {
      message = error.what();
    }
    if (stage == 0) {
      EXPECT_EQ(message, "");
      torch::nn::utils::clip_grad_norm_(alone.parameters, 0.01);
    } else {
      EXPECT_THAT(message, ::testing::AllOf(HasSubstr("the gradient of parameter '"),
                                            HasSubstr("EngineConfig::clip_norm")));
    }
    alone.step();
    EXPECT_TRUE(run.engine.step());  // nothing was damaged
    EXPECT_TRUE(same_bits(run.weights(), alone.parameters));
  });
}

TEST_P(PlainProgram, HasTheBitsOfTheModuleAloneUnderAutocast) {
  on_all_stages(GetParam(), [](dist::Communicator& communicator, int stage) {
    for (const char* name : {"gpt2", "used_twice", "views", "lstm"}) {
      SCOPED_TRACE(name);
      Alone alone(communicator.size(), optim::adamw(), name);
      Engined run(
          communicator, {.overlap = {.stage = stage}}, [](const auto&) { return optim::adamw(); },
          name);
      for (PlainModule* made : {&alone.made, &run.made}) {
        made->loss = [loss = made->loss] {
          const Autocast autocast;
          return loss().to(at::kFloat);
        };
      }
      for (int number = 0; number < 3; ++number) {
        alone.backward(number);
        alone.step();
        run.step(number);
      }
      EXPECT_TRUE(same_bits(run.weights(), alone.parameters));
    }
  });
}

// LibTorch keeps the bfloat16 copy of a weight until the scope ends: also for a second forward,
// which then does not read the weight, and after an update.
void expect_a_scope_for_each_forward(dist::Communicator& communicator, int stage,
                                     const std::string& name, bool around_steps) {
  const auto seed = [](int number, int m) {
    at::manual_seed(static_cast<std::uint64_t>(10 * number + m));
  };
  const PlainModule alone = make(name);
  const auto optimizer = optim::adamw()(alone.module->parameters());
  for (int number = 0; number < 3; ++number) {
    for (int m = 0; m < 2; ++m) {
      seed(number, m);
      at::Tensor loss;
      {
        const Autocast autocast;
        loss = alone.loss().to(at::kFloat);
      }
      (loss / 2).backward();
    }
    optimizer->step();
    for (const at::Tensor& p : alone.module->parameters()) p.mutable_grad().reset();
  }
  // Both ranks have these batches.
  Engined run(
      communicator, {.overlap = {.stage = stage}, .accumulation_steps = 2},
      [](const auto&) { return optim::adamw(); }, name);
  std::optional<Autocast> outer;
  if (around_steps) outer.emplace();
  for (int number = 0; number < 3; ++number) {
    std::vector<at::Tensor> losses;
    std::optional<Autocast> inner;
    if (!around_steps) inner.emplace();
    for (int m = 0; m < 2; ++m) {
      seed(number, m);
      losses.push_back(run.engine.forward([&] { return run.made.loss().to(at::kFloat); }));
    }
    inner.reset();
    for (const at::Tensor& loss : losses) {
      run.engine.backward(loss);
      run.engine.step();
    }
  }
  EXPECT_TRUE(same_bits(run.weights(), alone.module->parameters()));
}

TEST(PlainProgramOnTwoRanks, HasTheBitsOfTheModuleAloneInOneAutocastAroundForwards) {
  on_all_stages(2, [](dist::Communicator& communicator, int stage) {
    for (const char* name : {"gpt2", "used_twice", "views", "lstm"}) {
      for (const bool around_steps : {false, true}) {
        SCOPED_TRACE(fmt::format("{}, around steps: {}", name, around_steps));
        expect_a_scope_for_each_forward(communicator, stage, name, around_steps);
      }
    }
  });
}

TEST(PlainProgramOnTwoRanks, HasGroupsByNameWithMasterWeightsAndIgnoredParameters) {
  on_all_stages(2, [](dist::Communicator& communicator, int stage) {
    const auto in_bfloat16 = [] {
      PlainModule made = make(kModule);
      made.module->to(at::kBFloat16);
      return made;
    };
    const auto optimizer_of = [](const torch::nn::Module& module) {
      return optim::with_master_weights(optim::adamw(
          module, {{.weight_decay = 0.5}, {.weight_decay = 0}},
          [](const std::string&, const at::Tensor& p) { return p.dim() > 1 ? 0U : 1U; }));
    };
    const PlainModule alone = in_bfloat16(), made = in_bfloat16();
    std::vector<at::Tensor> trained;
    for (const auto& item : alone.module->named_parameters()) {
      if (item.key() != "norm.bias") trained.push_back(item.value());
    }
    const auto optimizer = optimizer_of(*alone.module)(trained);
    Engine engine(*made.module, communicator, optimizer_of(*made.module),
                  {.overlap = {.stage = stage}, .ignored = {"norm.bias"}},
                  plain_case(kModule).units);
    for (int number = 0; number < 3; ++number) {
      at::manual_seed(static_cast<std::uint64_t>(number));
      alone.loss().backward();
      optimizer->step();
      for (const at::Tensor& p : alone.module->parameters()) p.mutable_grad().reset();
      at::manual_seed(static_cast<std::uint64_t>(number));
      engine.backward(engine.forward(made.loss));
      engine.step();
    }
    EXPECT_TRUE(same_bits(whole_weights(engine.strategy()), trained));
  });
}

}  // namespace
}  // namespace zero::testing
