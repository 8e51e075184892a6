// Hooks that a program sets on parameters and on activations. The measure is the same program
// without an engine, in one process, with the batches of all ranks.

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/randint.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/modules/linear.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <tests/support/batch_model.hpp>
#include <tests/support/deferred.hpp>
#include <tests/support/error_of.hpp>
#include <tests/support/modes.hpp>
#include <tests/support/plain_ranks.hpp>
#include <tests/support/same_bits.hpp>
#include <tests/support/tensors.hpp>
#include <tests/support/whole_weights.hpp>
#include <zero/engine.hpp>
#include <zero/nn/checkpoint.hpp>
#include <zero/nn/cross_entropy.hpp>
#include <zero/nn/layers.hpp>

namespace zero::testing {
namespace {

namespace autograd = torch::autograd;
using ::testing::HasSubstr;

constexpr std::int64_t kWords = 13, kWidth = 6;

// Layers that write gradients themselves, one of them used twice.
class LayersUnit : public nn::Unit {
 public:
  LayersUnit(bool checkpoints, at::ScalarType dtype) : checkpoints_(checkpoints) {
    const auto normal = nn::Initializer::normal(0.4);
    linear_ = register_module("linear",
                              std::make_shared<nn::Linear>(kWidth, kWidth, normal, normal, dtype));
    norm_ = register_module("norm", std::make_shared<nn::RmsNorm>(kWidth, 1e-5, dtype));
  }
  at::Tensor forward(const at::Tensor& x) {
    const nn::CheckpointBody body = [this](const std::vector<at::Tensor>& in) {
      return norm_->forward(linear_->forward(linear_->forward(in[0]).tanh()) + in[0]);
    };
    return run([&] { return checkpoints_ ? nn::checkpoint(body, {x}) : body({x}); });
  }

 private:
  bool checkpoints_;
  std::shared_ptr<nn::Linear> linear_;
  std::shared_ptr<nn::RmsNorm> norm_;
};

// A small language model whose head is its embedding.
class TiedNet : public BatchModel {
 public:
  explicit TiedNet(bool checkpoints = false, at::ScalarType dtype = at::kFloat) {
    embedding_ = register_module(
        "embedding",
        std::make_shared<nn::Embedding>(kWords, kWidth, nn::Initializer::normal(0.4), dtype));
    for (const char* name : {"a", "b"}) {
      units_.push_back(register_module(name, std::make_shared<LayersUnit>(checkpoints, dtype)));
    }
  }
  at::Tensor predict(const data::Batch& batch) {
    return run([&] {
      at::Tensor x = embedding_->forward(batch.inputs);
      for (const auto& unit : units_) x = unit->forward(x);
      return embedding_->as_head(x).view({-1, kWords});
    });
  }
  at::Tensor loss(const data::Batch& batch) override {
    return nn::consuming_cross_entropy(predict(batch), batch.targets.view(-1), 20);
  }
  data::Batch batch(int rank, int number) const {
    auto generator =
        at::detail::createCPUGenerator(static_cast<std::uint64_t>(100 * rank + number));
    const auto ids = [&] { return at::randint(kWords, {4, 5}, generator, at::kLong); };
    return {.inputs = ids(), .targets = ids(), .loss_terms = 20};
  }

 private:
  std::shared_ptr<nn::Embedding> embedding_;
  std::vector<std::shared_ptr<LayersUnit>> units_;
};

// What a program does with each parameter of its model before a step; before step -1 there is no
// engine.
using Set = std::function<void(const at::Tensor& parameter, std::size_t index)>;
using Script = std::vector<std::pair<int, Set>>;

void play(const Script& script, const std::vector<at::Tensor>& parameters, int number) {
  for (const auto& [at, set] : script) {
    for (std::size_t i = 0; at == number && i < parameters.size(); ++i) set(parameters[i], i);
  }
}

constexpr int kSteps = 4;

struct HookedProgram {
  Script script = {};
  int micro_batches = 1;
  std::vector<int> stages = {0, 1, 2, 3};
};

const auto kHookedOptimizer = optim::adamw({.learning_rate = 0.01});

// The weights after `kSteps` updates without an engine.
template <typename Net>
std::vector<at::Tensor> plain_weights(Net& net, int ranks, const HookedProgram& program = {}) {
  nn::SeededValues values(3);
  nn::initialize_parameters(net, values);
  const std::vector<at::Tensor> parameters = parameters_of(net);
  play(program.script, parameters, -1);
  PlainRanks plain(parameters, ranks, kHookedOptimizer);
  for (int step = 0; step < kSteps; ++step) {
    play(program.script, parameters, step);
    for (int m = 0; m < program.micro_batches; ++m) {
      plain.backward([&](int rank) {
        return net.loss(net.batch(rank, step * program.micro_batches + m)) / program.micro_batches;
      });
    }
    plain.step();
  }
  return parameters;
}

// The same with an engine.
template <typename Net>
std::vector<at::Tensor> engine_weights(Net& net, dist::Communicator& communicator, int stage,
                                       const HookedProgram& program) {
  nn::SeededValues values(3);
  const std::vector<at::Tensor> parameters = parameters_of(net);
  play(program.script, parameters, -1);
  Engine engine(net, communicator, kHookedOptimizer,
                {.stage = stage, .accumulation_steps = program.micro_batches}, nn::default_units(),
                &values);
  for (int step = 0; step < kSteps; ++step) {
    play(program.script, parameters, step);
    for (int m = 0; m < program.micro_batches; ++m) {
      const data::Batch batch = net.batch(communicator.rank(), step * program.micro_batches + m);
      engine.evaluate([&] { return net.predict(batch); });
      engine.backward(forward_batch(engine, batch));
    }
    engine.step();
  }
  return whole_weights(engine.strategy());
}

int hook_calls = 0;  // of this process

// Expects that a net of these arguments has the same bits with an engine, and that its hooks are
// called as often on each rank.
template <typename Net, typename... Arguments>
void expect_plain_bits(dist::Communicator& communicator, const HookedProgram& program,
                       const Arguments&... arguments) {
  hook_calls = 0;
  Net plain(arguments...);
  const auto expected = plain_weights(plain, communicator.size(), program);
  const int calls = std::exchange(hook_calls, 0) / communicator.size();
  for (const int stage : program.stages) {
    const auto net = make_deferred<Net>(arguments...);
    EXPECT_TRUE(same_bits(engine_weights(*net, communicator, stage, program), expected))
        << "stage " << stage;
    EXPECT_EQ(std::exchange(hook_calls, 0), calls) << "stage " << stage;
  }
}

at::Tensor every_other(const at::Tensor& x) {
  return x * at::arange(x.numel(), x.options()).remainder(2).view_as(x);
}

struct AfterAccumulation : autograd::PostAccumulateGradHook {
  explicit AfterAccumulation(std::function<void(const at::Tensor&)> f) : function(std::move(f)) {}
  void operator()(const at::Tensor& parameter) override { function(parameter); }
  std::function<void(const at::Tensor&)> function;
};

void set_post_hook(const at::Tensor& parameter, std::function<void(const at::Tensor&)> function) {
  autograd::impl::set_post_acc_grad_hooks(parameter,
                                          std::make_unique<AfterAccumulation>(std::move(function)));
}

struct BeforeAccumulation : autograd::FunctionPreHook {
  autograd::variable_list operator()(const autograd::variable_list& gradients) override {
    return {every_other(gradients.front())};
  }
};

struct Hooks {
  std::string name;
  Script script;
};

std::vector<Hooks> hooks() {
  const auto changes = [](at::Tensor (*change)(const at::Tensor&)) -> Set {
    return [=](const at::Tensor& p, std::size_t) {
      p.register_hook([=](const at::Tensor& gradient) {
        ++hook_calls;
        return change(gradient);
      });
    };
  };
  const Set masks = changes(&every_other);
  const Set clamps = changes([](const at::Tensor& g) { return g.clamp(-0.01, 0.02); });
  const Set looks = [](const at::Tensor& p, std::size_t) {
    p.register_hook([](const at::Tensor& gradient) { hook_calls += gradient.defined(); });
  };
  const Set clamps_after = [](const at::Tensor& p, std::size_t) {
    set_post_hook(p, [](const at::Tensor& parameter) {
      ++hook_calls;
      parameter.mutable_grad() = parameter.grad().clamp(-0.01, 0.02);
    });
  };
  const Set forgets_first = [](const at::Tensor& p, std::size_t) { p.remove_hook(0); };
  const Set forgets_after = [](const at::Tensor& p, std::size_t) {
    autograd::impl::set_post_acc_grad_hooks(p, nullptr);
  };
  const Set freezes_one = [](const at::Tensor& p, std::size_t i) {
    if (i == 2) p.requires_grad_(false);
  };
  const auto kept = std::make_shared<std::vector<c10::intrusive_ptr<autograd::Node>>>();
  const Set of_accumulator = [kept](const at::Tensor& p, std::size_t) {
    kept->push_back(autograd::impl::grad_accumulator(p));
    kept->back()->add_pre_hook(std::make_unique<BeforeAccumulation>());
  };
  return {
      {"mask", {{-1, masks}}},
      {"mask, set later", {{1, masks}}},
      {"clamp", {{-1, clamps}}},
      {"look", {{-1, looks}}},
      {"mask and clamp, the mask until step 2", {{-1, masks}, {-1, clamps}, {2, forgets_first}}},
      {"after accumulation", {{-1, clamps_after}}},
      {"after accumulation, set later", {{1, clamps_after}}},
      {"after accumulation, until step 2", {{-1, clamps_after}, {2, forgets_after}}},
      {"before and after accumulation", {{-1, masks}, {-1, clamps_after}}},
      {"one frozen", {{-1, masks}, {1, freezes_one}}},
      {"of the accumulator", {{-1, of_accumulator}}}};
}

ZERO_TESTS_ON_RANKS(GradientHooks, 1, 2, 3);

TEST_P(GradientHooks, OfLayersSeeAndChangeWhatTheySeeWithoutAnEngine) {
  on_ranks(GetParam(), [](dist::Communicator& communicator) {
    for (const Hooks& h : hooks()) {
      for (const bool checkpoints : {false, true}) {
        if (checkpoints && h.name == "of the accumulator") continue;
        for (const int micro_batches : {1, 2}) {
          for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
            SCOPED_TRACE(fmt::format("{}, checkpoints {}, {} micro-batches, {}", h.name,
                                     checkpoints, micro_batches, c10::toString(dtype)));
            expect_plain_bits<TiedNet>(communicator, {h.script, micro_batches}, checkpoints, dtype);
          }
        }
      }
    }
  });
}

// One rank with the net.
struct TiedRun {
  TiedRun(dist::Communicator& communicator, int stage)
      : rank(communicator.rank()),
        net(make_deferred<TiedNet>()),
        engine(*net, communicator, kHookedOptimizer, {.stage = stage}, nn::default_units(),
               &values) {}
  void backward(int number) { engine.backward(forward_batch(engine, net->batch(rank, number))); }
  void step(int number) {
    backward(number);
    engine.step();
  }

  int rank;
  nn::SeededValues values{3};
  std::shared_ptr<TiedNet> net;
  Engine engine;
};

// When no forward() of the engine has been since.
TEST_P(GradientHooks, SetLaterKeepGradientsOfOtherPassesOut) {
  on_all_stages(GetParam(), [](dist::Communicator& communicator, int stage) {
    TiedRun run(communicator, stage);
    for (const at::Tensor& p : run.net->parameters()) set_post_hook(p, [](const at::Tensor&) {});
    run.net->loss(run.net->batch(run.rank, 9)).backward();
    for (int number = 0; number < kSteps; ++number) run.step(number);
    TiedNet plain;
    EXPECT_TRUE(
        same_bits(whole_weights(run.engine.strategy()), plain_weights(plain, communicator.size())));
  });
}

// As for a log. The engine goes on to write averages, and to give memory back.
TEST_P(GradientHooks, MayKeepTheGradient) {
  on_all_stages(GetParam(), [](dist::Communicator& communicator, int stage) {
    const auto gradients = [](BatchModel& model, const std::function<void()>& step) {
      std::map<const void*, at::Tensor> kept;
      const auto parameters = model.parameters();
      for (const at::Tensor& p : parameters) {
        set_post_hook(p, [&kept](const at::Tensor& parameter) {
          kept[parameter.unsafeGetTensorImpl()] = parameter.grad();
        });
      }
      step();
      std::vector<at::Tensor> in_order;
      for (const at::Tensor& p : parameters) in_order.push_back(kept[p.unsafeGetTensorImpl()]);
      return in_order;
    };
    TiedRun run(communicator, stage);
    const auto seen = gradients(*run.net, [&] { run.step(0); });
    TiedNet plain;
    nn::initialize_parameters(plain, run.values);
    const auto expected =
        gradients(plain, [&] { plain.loss(plain.batch(run.rank, 0)).backward(); });
    EXPECT_TRUE(same_bits(seen, expected));
  });
}

struct AfterAccumulator : autograd::FunctionPostHook {
  autograd::variable_list operator()(const autograd::variable_list& outputs,
                                     const autograd::variable_list&) override {
    return outputs;
  }
};

TEST_P(GradientHooks, AfterAnAccumulatorAreRefusedByName) {
  on_all_stages(GetParam(), [](dist::Communicator& communicator, int stage) {
    TiedRun run(communicator, stage);
    run.step(0);
    const auto accumulator = autograd::impl::grad_accumulator(run.net->parameters()[1]);
    accumulator->add_post_hook(std::make_unique<AfterAccumulator>());
    expect_error([&] { run.backward(1); }, {"'a.linear.weight'", "set_post_acc_grad_hooks()"});
  });
}

TEST(GradientHooksOfOneRank, ThatThrowAreHeardOfByAll) {
  for (const int stage : {0, 1, 2, 3}) {
    SCOPED_TRACE(stage);
    const auto exits = ranks_ended({.world_size = 3}, [&](dist::Communicator& communicator) {
      TiedRun run(communicator, stage);
      run.net->parameters()[1].register_hook([&](const at::Tensor&) {
        if (run.rank == 1 && run.engine.steps() == 1) throw Error("the hook of rank 1");
      });
      for (int number = 0; number < kSteps; ++number) run.step(number);
    });
    for (const dist::RankExit& exit : exits) {
      EXPECT_EQ(exit.exit_code, 1) << exit.rank;
      EXPECT_FALSE(exit.killed) << exit.rank;
      EXPECT_THAT(exit.output, HasSubstr(exit.rank == 1 ? "the hook of rank 1" : "is gone"));
    }
  }
}

// Its last operation has saved its own result for backward. It may have a loss of its own, computed
// after its output.
class TanhUnit : public nn::Unit {
 public:
  TanhUnit(at::ScalarType dtype, bool has_loss) : weight_(add("weight", dtype)) {
    if (has_loss) other_ = add("other", dtype);
  }
  at::Tensor forward(const at::Tensor& x) {
    return run([&] {
      const at::Tensor y = x.matmul(weight_).tanh();
      if (other_.defined()) own_loss = x.matmul(other_).square().sum();
      return y;
    });
  }
  at::Tensor own_loss;

 private:
  at::Tensor add(const char* name, at::ScalarType dtype) {
    return add_parameter(name, {kWidth, kWidth}, nn::Initializer::normal(0.4), dtype);
  }
  at::Tensor weight_, other_;
};

// Hands on what the unit inside gives.
class UnitAround : public nn::Unit {
 public:
  UnitAround(at::ScalarType dtype, bool has_loss)
      : inner(register_module("inner", std::make_shared<TanhUnit>(dtype, has_loss))),
        gain_(add_parameter("gain", {kWidth}, nn::Initializer::normal(1), dtype)) {}
  at::Tensor forward(const at::Tensor& x) {
    return run([&] { return inner->forward(x * gain_); });
  }
  std::shared_ptr<TanhUnit> inner;

 private:
  at::Tensor gain_;
};

data::Batch inputs_of(int rank, int number, at::ScalarType dtype = at::kFloat) {
  const auto seed = static_cast<std::uint64_t>(100 * rank + number);
  return {.inputs = random({4, kWidth}, seed, /*gradient=*/false, dtype), .loss_terms = 4};
}

// A loss with more than the output in it, and activations that a program looks at.
class PenaltyNet : public BatchModel {
 public:
  enum class Adds { kNothing, kSlopeOfInput, kSlopeBetweenUnits, kLossesOfUnits };
  using Look = std::function<void(std::vector<at::Tensor>& activations)>;
  explicit PenaltyNet(
      at::ScalarType dtype = at::kFloat, Adds what = Adds::kNothing, Look look = [](auto&) {})
      : adds(what), dtype_(dtype), look_(std::move(look)) {
    const bool has_losses = adds == Adds::kLossesOfUnits;
    first_ = register_module("first", std::make_shared<UnitAround>(dtype, has_losses));
    second_ = register_module("second", std::make_shared<TanhUnit>(dtype, has_losses));
  }
  at::Tensor predict(const data::Batch& batch) {
    return run([&] { return second_->forward(first_->forward(batch.inputs)); });
  }
  at::Tensor loss(const data::Batch& batch) override {
    return run([&] {
      std::vector<at::Tensor> x = {batch.inputs.requires_grad_()};
      x.push_back(first_->forward(x[0]));
      x.push_back(second_->forward(x[1]));
      look_(x);
      const at::Tensor loss = x[2].sin().mean();
      if (adds == Adds::kNothing) return loss;
      if (adds == Adds::kLossesOfUnits) return loss + first_->inner->own_loss + second_->own_loss;
      const auto slopes = autograd::grad({loss}, {x[adds == Adds::kSlopeOfInput ? 0 : 1]}, {}, true,
                                         /*create_graph=*/true);
      return loss + 3 * slopes[0].square().sum();
    });
  }
  data::Batch batch(int rank, int number) const { return inputs_of(rank, number, dtype_); }
  Adds adds;

 private:
  at::ScalarType dtype_;
  Look look_;
  std::shared_ptr<UnitAround> first_;
  std::shared_ptr<TanhUnit> second_;
};

std::vector<std::pair<std::string, PenaltyNet::Look>> looks() {
  const auto scale = [](const at::Tensor& x) {
    x.register_hook([](const at::Tensor& gradient) { return gradient * 1.25; });
  };
  return {
      {"nothing", [](auto&) {}},
      {"the input", [=](auto& x) { scale(x[0]); }},
      {"between units", [=](auto& x) { scale(x[1]); }},
      {"the last unit", [=](auto& x) { scale(x[2]); }},
      {"all, and keeps gradients",
       [=](auto& x) {
         for (const at::Tensor& one : x) scale(one), one.retain_grad();
       }},
  };
}

// Also where a unit's hooks must come before the backward of a loss inside it.
TEST_P(GradientHooks, OfActivationsOfUnitsHaveTheBitsWithoutAnEngineAlsoUnderAPenalty) {
  on_ranks(GetParam(), [](dist::Communicator& communicator) {
    using enum PenaltyNet::Adds;
    for (const auto& [name, look] : looks()) {
      for (const auto adds : {kNothing, kSlopeOfInput, kSlopeBetweenUnits, kLossesOfUnits}) {
        if (adds == kLossesOfUnits && name != "nothing") continue;
        for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
          SCOPED_TRACE(
              fmt::format("{}, adds {}, {}", name, static_cast<int>(adds), c10::toString(dtype)));
          HookedProgram program;
          const bool twice = adds == kSlopeOfInput || adds == kSlopeBetweenUnits;
          if (twice) program.stages = {0, 1, 2};  // see below
          expect_plain_bits<PenaltyNet>(communicator, program, dtype, adds, look);
        }
      }
    }
  });
}

struct PlainPair : torch::nn::Module {
  PlainPair() {
    for (const char* name : {"first", "second"}) {
      layers.push_back(register_module(name, torch::nn::Linear(kWidth, kWidth)));
    }
  }
  at::Tensor loss(const at::Tensor& x, bool penalised) {
    const at::Tensor y = layers[1](layers[0](x).tanh()).tanh();
    if (!penalised) return y.square().mean();
    return autograd::grad({y.sum()}, {x}, {}, true, /*create_graph=*/true)[0].square().mean();
  }
  std::vector<torch::nn::Linear> layers;
};

// Where parameters are sharded: on all ranks, and before anything is reduced. The step is given up.
TEST_P(GradientHooks, ASecondBackwardIsRefusedAtStage3) {
  on_ranks(GetParam(), [](dist::Communicator& communicator) {
    const auto weights_of = [&](const EngineConfig& config, bool is_plain, bool tries) {
      at::manual_seed(3);
      PlainPair pair;
      const auto units = make_deferred<PenaltyNet>();
      nn::SeededValues values(3);
      torch::nn::Module& module = is_plain ? static_cast<torch::nn::Module&>(pair) : *units;
      Engine engine(module, communicator, optim::adamw(), config, nn::default_units(1), &values);
      const auto backward = [&](int number, bool penalised) {
        using enum PenaltyNet::Adds;
        const data::Batch batch = inputs_of(communicator.rank(), number);
        units->adds = penalised ? kSlopeOfInput : kNothing;
        engine.backward(engine.forward([&] {
          return is_plain ? pair.loss(batch.inputs.requires_grad_(), penalised)
                          : units->loss(batch);
        }));
      };
      for (const int number : {0, 1, 2}) {
        if (tries) {
          const dist::Traffic before = communicator.traffic();
          expect_error([&] { backward(number, /*penalised=*/true); },
                       {"create_graph runs through unit 'second'", "needs stages 0 to 2"});
          EXPECT_EQ(communicator.traffic().since(before).bytes(dist::Purpose::kGradient), 0);
          engine.give_up_step();
        }
        backward(number, /*penalised=*/false);
        EXPECT_TRUE(engine.step());
      }
      return whole_weights(engine.strategy());
    };
    for (const EngineConfig& config :
         std::vector<EngineConfig>{{}, {.lookahead = 0}, {.shard_size = 1}}) {
      for (const bool is_plain : {false, true}) {
        SCOPED_TRACE(fmt::format("{}, plain: {}", base::text_of(config), is_plain));
        EXPECT_TRUE(
            same_bits(weights_of(config, is_plain, true), weights_of(config, is_plain, false)));
      }
    }
  });
}

}  // namespace
}  // namespace zero::testing
