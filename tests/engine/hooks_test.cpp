// Hooks that a program sets on parameters and on activations. The measure is the same program
// without an engine, in one process: a backward for the batch of each rank, gradients averaged in
// rank order, one optimizer over everything.

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

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <tests/support/deferred.hpp>
#include <tests/support/error_of.hpp>
#include <tests/support/modes.hpp>
#include <tests/support/same_bits.hpp>
#include <tests/support/tensors.hpp>
#include <tests/support/whole_weights.hpp>
#include <zero/engine/engine.hpp>
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
class TiedNet : public nn::Model {
 public:
  explicit TiedNet(bool checkpoints = false, at::ScalarType dtype = at::kFloat) {
    embedding_ = register_module(
        "embedding",
        std::make_shared<nn::Embedding>(kWords, kWidth, nn::Initializer::normal(0.4), dtype));
    for (const char* name : {"a", "b"}) {
      units_.push_back(register_module(name, std::make_shared<LayersUnit>(checkpoints, dtype)));
    }
  }
  at::Tensor predict(const data::Batch& batch) override {
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
    return {.inputs = ids(), .targets = ids()};
  }

 private:
  std::shared_ptr<nn::Embedding> embedding_;
  std::vector<std::shared_ptr<LayersUnit>> units_;
};

// What a program does with the parameters of its model before step `number`; -1: before there is an
// engine.
using Script = std::function<void(const std::vector<at::Tensor>& parameters, int number)>;

constexpr int kSteps = 4;

// The weights after `kSteps` updates without an engine, of the batches of all ranks.
std::vector<at::Tensor> plain_weights(
    nn::Model& model, int ranks, int micro_batches,
    const std::function<at::Tensor(int rank, int number)>& loss,
    const Script& script = [](const auto&, int) {}) {
  nn::SeededValues values(3);
  nn::initialize_parameters(model, values);
  const std::vector<at::Tensor> parameters = parameters_of(model);
  script(parameters, -1);
  const auto optimizer = optim::adamw({.learning_rate = 0.01})(parameters);
  for (int step = 0; step < kSteps; ++step) {
    script(parameters, step);
    std::vector<at::Tensor> sums(parameters.size());
    for (int rank = 0; rank < ranks; ++rank) {
      for (int m = 0; m < micro_batches; ++m) {
        const at::Tensor of_batch = loss(rank, step * micro_batches + m);
        (micro_batches == 1 ? of_batch : of_batch / micro_batches).backward();
      }
      for (std::size_t i = 0; i < sums.size(); ++i) {
        at::Tensor gradient = std::exchange(parameters[i].mutable_grad(), {});
        if (!gradient.defined()) continue;
        sums[i] = sums[i].defined() ? sums[i] + gradient : gradient;
      }
    }
    for (std::size_t i = 0; i < sums.size(); ++i) {
      if (sums[i].defined()) parameters[i].mutable_grad() = sums[i] / ranks;
    }
    optimizer->step();
    for (const at::Tensor& p : parameters) p.mutable_grad().reset();
  }
  return parameters;
}

// The same with an engine.
std::vector<at::Tensor> engine_weights(
    nn::Model& model, dist::Communicator& communicator, const EngineConfig& config,
    const std::function<data::Batch(int number)>& batch,
    const Script& script = [](const auto&, int) {}) {
  nn::SeededValues values(3);
  const std::vector<at::Tensor> parameters = parameters_of(model);
  script(parameters, -1);
  Engine engine(model, communicator, optim::adamw({.learning_rate = 0.01}), config, &values);
  for (int step = 0; step < kSteps; ++step) {
    script(parameters, step);
    for (int m = 0; m < config.accumulation_steps; ++m) {
      const data::Batch one = batch(step * config.accumulation_steps + m);
      engine.evaluate([&] { return model.predict(one); });
      engine.backward(engine.forward(one));
    }
    engine.step();
  }
  return whole_weights(engine.strategy());
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
  Script set;  // and counts calls
};

// `calls` is set by each run.
std::vector<Hooks> hooks(int& calls) {
  const auto on_all = [](int at, const std::function<void(const at::Tensor&)>& set) -> Script {
    return [=](const auto& parameters, int number) {
      if (number == at) std::ranges::for_each(parameters, set);
    };
  };
  const auto masks = [&calls](const at::Tensor& p) {
    p.register_hook([&calls](const at::Tensor& gradient) {
      ++calls;
      return every_other(gradient);
    });
  };
  const auto clamps = [&calls](const at::Tensor& p) {
    p.register_hook([&calls](const at::Tensor& gradient) {
      ++calls;
      return gradient.clamp(-0.01, 0.02);
    });
  };
  const auto looks = [&calls](const at::Tensor& p) {
    p.register_hook([&calls](const at::Tensor& gradient) { calls += gradient.defined(); });
  };
  const auto clamps_after = [&calls](const at::Tensor& p) {
    set_post_hook(p, [&calls](const at::Tensor& parameter) {
      ++calls;
      parameter.mutable_grad() = parameter.grad().clamp(-0.01, 0.02);
    });
  };
  const auto kept = std::make_shared<std::vector<c10::intrusive_ptr<autograd::Node>>>();
  return {
      {"mask", on_all(-1, masks)},
      {"mask, set later", on_all(1, masks)},
      {"clamp", on_all(-1, clamps)},
      {"look", on_all(-1, looks)},
      {"mask and clamp, the mask until step 2",
       [=](const auto& parameters, int number) {
         for (const at::Tensor& p : parameters) {
           if (number == -1) masks(p), clamps(p);
           if (number == 2) p.remove_hook(0);
         }
       }},
      {"after accumulation", on_all(-1, clamps_after)},
      {"after accumulation, set later", on_all(1, clamps_after)},
      {"after accumulation, until step 2",
       [=](const auto& parameters, int number) {
         for (const at::Tensor& p : parameters) {
           if (number == -1) clamps_after(p);
           if (number == 2) autograd::impl::set_post_acc_grad_hooks(p, nullptr);
         }
       }},
      {"before and after accumulation",
       [=](const auto& parameters, int number) {
         for (const at::Tensor& p : parameters) {
           if (number == -1) masks(p), clamps_after(p);
         }
       }},
      {"one frozen",
       [=](const auto& parameters, int number) {
         if (number == -1) std::ranges::for_each(parameters, masks);
         if (number == 1) parameters[2].requires_grad_(false);
       }},
      {"of the accumulator",
       [=](const auto& parameters, int number) {
         for (const at::Tensor& p : parameters) {
           if (number != -1) continue;
           kept->push_back(autograd::impl::grad_accumulator(p));
           kept->back()->add_pre_hook(std::make_unique<BeforeAccumulation>());
         }
       }},
  };
}

ZERO_TESTS_ON_RANKS(GradientHooks, 1, 2, 3);

TEST_P(GradientHooks, OfLayersSeeAndChangeWhatTheySeeWithoutAnEngine) {
  on_ranks(GetParam(), [](dist::Communicator& communicator) {
    int calls = 0;
    for (const Hooks& h : hooks(calls)) {
      for (const bool checkpoints : {false, true}) {
        if (checkpoints && h.name == "of the accumulator") continue;
        for (const int micro_batches : {1, 2}) {
          for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
            SCOPED_TRACE(fmt::format("{}, checkpoints {}, {} micro-batches, {}", h.name,
                                     checkpoints, micro_batches, c10::toString(dtype)));
            calls = 0;
            TiedNet plain(checkpoints, dtype);
            const auto loss = [&](int rank, int n) { return plain.loss(plain.batch(rank, n)); };
            const auto expected =
                plain_weights(plain, communicator.size(), micro_batches, loss, h.set);
            const int expected_calls = std::exchange(calls, 0) / communicator.size();
            for (const int stage : {0, 1, 2, 3}) {
              const auto net = make_deferred<TiedNet>(checkpoints, dtype);
              const auto weights = engine_weights(
                  *net, communicator,
                  {.overlap = {.stage = stage}, .accumulation_steps = micro_batches},
                  [&](int n) { return net->batch(communicator.rank(), n); }, h.set);
              EXPECT_TRUE(same_bits(weights, expected)) << "stage " << stage;
              EXPECT_EQ(std::exchange(calls, 0), expected_calls) << "stage " << stage;
            }
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
        engine(*net, communicator, optim::adamw({.learning_rate = 0.01}),
               {.overlap = {.stage = stage}}, &values) {}
  void backward(int number) { engine.backward(engine.forward(net->batch(rank, number))); }

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
    for (int step = 0; step < kSteps; ++step) {
      run.backward(step);
      run.engine.step();
    }
    TiedNet plain;
    const auto loss = [&](int rank, int n) { return plain.loss(plain.batch(rank, n)); };
    EXPECT_TRUE(same_bits(whole_weights(run.engine.strategy()),
                          plain_weights(plain, communicator.size(), 1, loss)));
  });
}

// As for a log. The engine goes on to write averages, and to give memory back.
TEST_P(GradientHooks, MayKeepTheGradient) {
  on_all_stages(GetParam(), [](dist::Communicator& communicator, int stage) {
    const auto gradients = [](nn::Model& model, const std::function<void()>& step) {
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
    const auto seen = gradients(*run.net, [&] {
      run.backward(0);
      run.engine.step();
    });
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
    run.backward(0);
    run.engine.step();
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
      for (int step = 0; step < kSteps; ++step) {
        run.backward(step);
        run.engine.step();
      }
    });
    for (const dist::RankExit& exit : exits) {
      EXPECT_EQ(exit.exit_code, 1) << exit.rank;
      EXPECT_FALSE(exit.killed) << exit.rank;
      EXPECT_THAT(exit.output, HasSubstr(exit.rank == 1 ? "the hook of rank 1" : "is gone"));
    }
  }
}

// Its last operation has saved its own result for backward.
class TanhUnit : public nn::Unit {
 public:
  explicit TanhUnit(at::ScalarType dtype)
      : weight_(add_parameter("weight", {kWidth, kWidth}, nn::Initializer::normal(0.4), dtype)) {}
  at::Tensor forward(const at::Tensor& x) {
    return run([&] { return x.matmul(weight_).tanh(); });
  }

 private:
  at::Tensor weight_;
};

// Hands on what the unit inside gives.
class UnitAround : public nn::Unit {
 public:
  explicit UnitAround(at::ScalarType dtype)
      : inner_(register_module("inner", std::make_shared<TanhUnit>(dtype))),
        gain_(add_parameter("gain", {kWidth}, nn::Initializer::normal(1), dtype)) {}
  at::Tensor forward(const at::Tensor& x) {
    return run([&] { return inner_->forward(x * gain_); });
  }

 private:
  std::shared_ptr<TanhUnit> inner_;
  at::Tensor gain_;
};

// A loss with a penalty on its gradient, and activations that a program looks at.
class PenaltyNet : public nn::Model {
 public:
  enum class Penalty { kNone, kOfInput, kBetweenUnits };
  using Look = std::function<void(std::vector<at::Tensor>& activations)>;
  explicit PenaltyNet(
      at::ScalarType dtype = at::kFloat, Penalty of = Penalty::kNone, Look look = [](auto&) {})
      : penalty(of), look_(std::move(look)) {
    first_ = register_module("first", std::make_shared<UnitAround>(dtype));
    second_ = register_module("second", std::make_shared<TanhUnit>(dtype));
  }
  at::Tensor predict(const data::Batch& batch) override {
    return run([&] { return second_->forward(first_->forward(batch.inputs)); });
  }
  at::Tensor loss(const data::Batch& batch) override {
    return run([&] {
      std::vector<at::Tensor> x = {batch.inputs.requires_grad_()};
      x.push_back(first_->forward(x[0]));
      x.push_back(second_->forward(x[1]));
      look_(x);
      const at::Tensor loss = x[2].sin().mean();
      if (penalty == Penalty::kNone) return loss;
      const auto slopes = autograd::grad({loss}, {x[penalty == Penalty::kOfInput ? 0 : 1]}, {},
                                         true, /*create_graph=*/true);
      return loss + 3 * slopes[0].square().sum();
    });
  }
  static data::Batch batch(int rank, int number, at::ScalarType dtype) {
    const auto seed = static_cast<std::uint64_t>(100 * rank + number);
    return {.inputs = random({4, kWidth}, seed, /*gradient=*/false, dtype)};
  }
  Penalty penalty;

 private:
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

TEST_P(GradientHooks, OfActivationsOfUnitsHaveTheBitsWithoutAnEngineAlsoUnderAPenalty) {
  on_ranks(GetParam(), [](dist::Communicator& communicator) {
    using enum PenaltyNet::Penalty;
    for (const auto& [name, look] : looks()) {
      for (const auto penalty : {kNone, kOfInput, kBetweenUnits}) {
        for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
          SCOPED_TRACE(fmt::format("{}, penalty {}, {}", name, static_cast<int>(penalty),
                                   c10::toString(dtype)));
          PenaltyNet plain(dtype, penalty, look);
          const auto expected =
              plain_weights(plain, communicator.size(), 1, [&](int rank, int number) {
                return plain.loss(PenaltyNet::batch(rank, number, dtype));
              });
          for (const int stage : {0, 1, 2, 3}) {
            if (penalty != kNone && stage == 3) continue;  // refused
            const auto net = make_deferred<PenaltyNet>(dtype, penalty, look);
            const auto weights = engine_weights(
                *net, communicator, {.overlap = {.stage = stage}},
                [&](int n) { return PenaltyNet::batch(communicator.rank(), n, dtype); });
            EXPECT_TRUE(same_bits(weights, expected)) << "stage " << stage;
          }
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
      const auto engine = is_plain ? std::make_unique<Engine>(pair, communicator, optim::adamw(),
                                                              config, nn::default_units(1))
                                   : std::make_unique<Engine>(*units, communicator, optim::adamw(),
                                                              config, &values);
      const auto loss = [&](int number, bool penalised) {
        const data::Batch batch = PenaltyNet::batch(communicator.rank(), number, at::kFloat);
        units->penalty = penalised ? PenaltyNet::Penalty::kOfInput : PenaltyNet::Penalty::kNone;
        if (!is_plain) return engine->forward(batch);
        return engine->forward([&] { return pair.loss(batch.inputs.requires_grad_(), penalised); });
      };
      for (const int number : {0, 1, 2}) {
        if (tries) {
          const dist::Traffic before = communicator.traffic();
          expect_error([&] { engine->backward(loss(number, /*penalised=*/true)); },
                       {"create_graph runs through unit 'second'", "needs stages 0 to 2"});
          EXPECT_EQ(communicator.traffic().since(before).bytes(dist::Purpose::kGradient), 0);
          engine->give_up_step();
        }
        engine->backward(loss(number, /*penalised=*/false));
        EXPECT_TRUE(engine->step());
      }
      return whole_weights(engine->strategy());
    };
    for (const EngineConfig& config : std::vector<EngineConfig>{
             {}, {.overlap = {.lookahead = 0}}, {.more = R"({"shard_size": 1})"}}) {
      for (const bool is_plain : {false, true}) {
        SCOPED_TRACE(fmt::format("{}, plain: {}", mode_options(config), is_plain));
        EXPECT_TRUE(
            same_bits(weights_of(config, is_plain, true), weights_of(config, is_plain, false)));
      }
    }
  });
}

// Has a loss of its own, computed after its output.
class UnitWithLoss : public nn::Unit {
 public:
  at::Tensor forward(const at::Tensor& x) {
    return run([&] {
      const at::Tensor y = x.matmul(weight_).tanh();
      own_loss = x.matmul(other_).square().sum();
      return y;
    });
  }
  at::Tensor own_loss;

 private:
  at::Tensor weight_ = add_parameter("weight", {kWidth, kWidth}, nn::Initializer::normal(0.4));
  at::Tensor other_ = add_parameter("other", {kWidth, kWidth}, nn::Initializer::normal(0.4));
};

class NetWithLosses : public nn::Model {
 public:
  at::Tensor predict(const data::Batch& batch) override {
    return run([&] { return b_->forward(a_->forward(batch.inputs)); });
  }
  at::Tensor loss(const data::Batch& batch) override {
    return run([&] { return predict(batch).square().sum() + a_->own_loss + b_->own_loss; });
  }

 private:
  std::shared_ptr<UnitWithLoss> a_ = register_module("a", std::make_shared<UnitWithLoss>());
  std::shared_ptr<UnitWithLoss> b_ = register_module("b", std::make_shared<UnitWithLoss>());
};

TEST_P(GradientHooks, OfUnitsComeBeforeTheBackwardOfALossInside) {
  on_all_stages(GetParam(), [](dist::Communicator& communicator, int stage) {
    const auto batch = [](int rank, int n) { return PenaltyNet::batch(rank, n, at::kFloat); };
    NetWithLosses plain;
    const auto net = make_deferred<NetWithLosses>();
    const auto weights =
        engine_weights(*net, communicator, {.overlap = {.stage = stage}},
                       [&](int number) { return batch(communicator.rank(), number); });
    EXPECT_TRUE(same_bits(weights, plain_weights(plain, communicator.size(), 1, [&](int r, int n) {
                            return plain.loss(batch(r, n));
                          })));
  });
}

}  // namespace
}  // namespace zero::testing
