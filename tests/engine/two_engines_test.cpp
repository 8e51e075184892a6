// Two engines on one communicator, as a generator and its discriminator have them. The measure is
// the plain modules in one process, with the batches of all ranks.

#include <ATen/core/grad_mode.h>
#include <ATen/ops/softplus.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <vector>

#include <tests/support/deferred.hpp>
#include <tests/support/engine_run.hpp>
#include <tests/support/error_of.hpp>
#include <tests/support/hooked_optimizer.hpp>
#include <tests/support/modes.hpp>
#include <tests/support/plain_ranks.hpp>
#include <tests/support/same_bits.hpp>
#include <tests/support/tensors.hpp>

namespace zero::testing {
namespace {

ZERO_TESTS_ON_RANKS(TwoEngines, 2, 3);

// Says how real its input looks.
class Discriminator final : public tools::Mlp {
 public:
  Discriminator() : Mlp({.inputs = 5, .outputs = 1}) {}
  at::Tensor score(const at::Tensor& samples) { return predict(samples); }
  at::Tensor loss_of(const at::Tensor& real, const at::Tensor& made) {
    return at::softplus(-score(real)).mean() + at::softplus(score(made)).mean();
  }
};

// Makes samples from noise.
class Generator final : public tools::Mlp {
 public:
  explicit Generator(Discriminator& judge) : Mlp({.inputs = 7, .outputs = 5}), judge_(judge) {}
  at::Tensor make(const at::Tensor& noise) { return predict(noise); }
  at::Tensor loss_of(const at::Tensor& noise) {
    return at::softplus(-judge_.score(make(noise))).mean();
  }

 private:
  Discriminator& judge_;
};

struct Gan {
  Gan() : values(3) {
    discriminator = make_deferred<Discriminator>();
    generator = make_deferred<Generator>(*discriminator);
  }
  static at::Tensor random(int rank, int step, std::int64_t width) {
    const auto seed = static_cast<std::uint64_t>(100 * width + 10 * rank + step);
    return testing::random({4, width}, seed, /*gradient=*/false, at::kFloat);
  }
  void freeze_discriminator(bool frozen) const {
    for (at::Tensor& p : discriminator->parameters()) p.requires_grad_(!frozen);
  }

  nn::SeededValues values;
  std::shared_ptr<Discriminator> discriminator;
  std::shared_ptr<Generator> generator;
};

// How a loop trains the generator.
enum class Loop {
  kThrough,  // its backward passes through the discriminator, whose gradients nobody wants
  kFrozen,   // the discriminator is frozen meanwhile
  kShared,   // as kThrough, with the samples that the discriminator was trained on
};
constexpr Loop kTwoLoops[] = {Loop::kThrough, Loop::kFrozen, Loop::kShared};

using Forward =
    std::function<at::Tensor(tools::Mlp& model, const std::function<at::Tensor()>& loss)>;
// Makes the losses of a model, runs their backward, and updates it.
using Train =
    std::function<void(tools::Mlp& model, const std::function<at::Tensor(int rank)>& loss)>;

// Two steps. `ranks`: whose batches this process has.
void play(Gan& gan, Loop loop, const std::vector<int>& ranks, const Forward& forward,
          const Train& train) {
  for (int step = 0; step < 2; ++step) {
    std::map<int, at::Tensor> shared;
    for (const int r : ranks) {
      const at::AutoGradMode graph(loop == Loop::kShared);
      shared[r] = gan.generator->make(Gan::random(r, step, 7));
    }
    train(*gan.discriminator, [&](int r) {
      return forward(*gan.discriminator, [&] {
        return gan.discriminator->loss_of(Gan::random(r, step, 5), shared[r].detach());
      });
    });
    if (loop == Loop::kFrozen) gan.freeze_discriminator(true);
    train(*gan.generator, [&](int r) {
      if (loop != Loop::kShared) {
        return forward(*gan.generator,
                       [&] { return gan.generator->loss_of(Gan::random(r, step, 7)); });
      }
      return at::softplus(-gan.discriminator->score(shared[r])).mean();
    });
    if (loop == Loop::kFrozen) gan.freeze_discriminator(false);
  }
}

// Weights of discriminator and generator after two steps of the plain modules.
std::vector<at::Tensor> plain_weights(Loop loop, int ranks) {
  Gan gan;
  std::map<tools::Mlp*, PlainRanks> trained;
  std::vector<at::Tensor> all;
  for (tools::Mlp* model : {static_cast<tools::Mlp*>(gan.discriminator.get()),
                            static_cast<tools::Mlp*>(gan.generator.get())}) {
    nn::initialize_parameters(*model, gan.values);
    const std::vector<at::Tensor> parameters = parameters_of(*model);
    trained.try_emplace(model, parameters, ranks, optim::adamw());
    all.insert(all.end(), parameters.begin(), parameters.end());
  }
  const auto train = [&](tools::Mlp& model, const auto& loss) {
    trained.at(&model).backward(loss);
    trained.at(&model).step();
  };
  std::vector<int> every_rank(static_cast<std::size_t>(ranks));
  std::iota(every_rank.begin(), every_rank.end(), 0);
  play(
      gan, loop, every_rank,
      [](tools::Mlp&, const std::function<at::Tensor()>& loss) { return loss(); }, train);
  return all;
}

struct Engines {
  Engines(Gan& gan, dist::Communicator& communicator, const EngineConfig& config)
      : discriminator(*gan.discriminator, communicator, optim::adamw(), config, nn::default_units(),
                      &gan.values),
        generator(*gan.generator, communicator, optim::adamw(), config, nn::default_units(),
                  &gan.values) {}
  Engine discriminator;
  Engine generator;
};

// Every stage, and values of one model that are still on their way when the other reads them.
std::vector<EngineConfig> two_engine_options() {
  std::vector<EngineConfig> all = {{.stage = 0}, {.stage = 1}, {.stage = 2}, {.stage = 3}};
  for (const int stage : {0, 1, 2}) {
    for (const std::int64_t bucket : {1 << 9, 1 << 20}) {
      all.push_back({.stage = stage, .bucket_bytes = bucket, .defer_parameter_gather = true});
    }
  }
  return all;
}

TEST_P(TwoEngines, TrainAGeneratorAndItsDiscriminatorAsThePlainModules) {
  on_ranks(GetParam(), [](dist::Communicator& communicator) {
    for (const Loop loop : kTwoLoops) {
      const std::vector<at::Tensor> expected = plain_weights(loop, communicator.size());
      for (const EngineConfig& config : two_engine_options()) {
        Gan gan;
        Engines engines(gan, communicator, config);
        const auto engine_of = [&](tools::Mlp& model) -> Engine& {
          return &model == gan.generator.get() ? engines.generator : engines.discriminator;
        };
        play(
            gan, loop, {communicator.rank()},
            [&](tools::Mlp& model, const std::function<at::Tensor()>& loss) {
              if (config.defer_parameter_gather) engine_of(model).evaluate(loss);
              return engine_of(model).forward(loss);
            },
            [&](tools::Mlp& model, const auto& loss) {
              engine_of(model).backward(loss(communicator.rank()));
              EXPECT_TRUE(engine_of(model).step());
            });
        std::vector<at::Tensor> weights = whole_weights(engines.discriminator.strategy());
        for (const at::Tensor& p : whole_weights(engines.generator.strategy())) {
          weights.push_back(p);
        }
        EXPECT_TRUE(same_bits(weights, expected))
            << "loop " << static_cast<int>(loop) << ", " << base::text_of(config);
      }
    }
  });
}

// The plain modules would add the generator's gradients of the discriminator to its own.
TEST_P(TwoEngines, RefuseABackwardThroughAModelWhoseStepIsOpen) {
  on_all_stages(GetParam(), [](dist::Communicator& communicator, int stage) {
    Gan gan;
    Engines engines(gan, communicator, {.stage = stage});
    const int rank = communicator.rank();
    const auto judge = [&] {
      return gan.discriminator->loss_of(Gan::random(rank, 0, 5), Gan::random(rank, 1, 5));
    };
    const auto make = [&] { return gan.generator->loss_of(Gan::random(rank, 0, 7)); };
    engines.discriminator.backward(engines.discriminator.forward(judge));
    expect_error([&] { engines.generator.backward(engines.generator.forward(make)); },
                 {"parameter 'output.", "did not run"});
    engines.generator.give_up_step();
    EXPECT_TRUE(engines.discriminator.step());
    engines.generator.backward(engines.generator.forward(make));
    EXPECT_TRUE(engines.generator.step());
  });
}

// A generator that learns through its critic, both of LibTorch's modules.
struct PlainGan {
  PlainGan(dist::Communicator& communicator, const EngineConfig& config)
      : generator(*made, communicator, adamw(), config),
        critic(*judge, communicator, adamw(), config) {}
  static optim::OptimizerFactory adamw() {
    return wrapped<torch::optim::AdamW>(torch::optim::AdamWOptions(0.01));
  }
  static torch::nn::Sequential layers(std::int64_t outputs) {
    at::manual_seed(static_cast<std::uint64_t>(outputs));
    return torch::nn::Sequential(torch::nn::Linear(8, 32), torch::nn::Tanh(),
                                 torch::nn::Linear(32, outputs));
  }
  torch::nn::Sequential made = layers(8), judge = layers(1);
  Engine generator, critic;
};

// What both have seen and become in three steps.
std::vector<at::Tensor> trained_plain_gan(dist::Communicator& communicator,
                                          const EngineConfig& config, bool evaluates) {
  PlainGan gan(communicator, config);
  std::vector<at::Tensor> seen;
  for (int step = 0; step < 3; ++step) {
    const at::Tensor z = Gan::random(communicator.rank(), step, 8);
    const at::Tensor fake = gan.generator.evaluate([&] { return gan.made->forward(z); });
    gan.critic.backward(
        gan.critic.forward([&] { return at::softplus(gan.judge->forward(fake)).mean(); }));
    gan.critic.step();
    const auto loss = [&] {
      return at::softplus(-gan.judge->forward(gan.made->forward(z))).mean();
    };
    if (evaluates) seen.push_back(gan.generator.evaluate(loss));
    gan.generator.backward(gan.generator.forward(loss));
    gan.generator.step();
  }
  for (Engine* const engine : {&gan.generator, &gan.critic}) {
    for (const at::Tensor& weight : whole_weights(engine->strategy())) seen.push_back(weight);
  }
  return seen;
}

TEST_P(TwoEngines, WaitForLateValuesOfAPlainModuleOfTheOther) {
  on_ranks(GetParam(), [](dist::Communicator& communicator) {
    for (const EngineConfig& config : two_engine_options()) {
      if (!config.defer_parameter_gather) continue;
      EngineConfig at_once = config;
      at_once.defer_parameter_gather = false;
      for (const bool evaluates : {false, true}) {
        EXPECT_TRUE(same_bits(trained_plain_gan(communicator, config, evaluates),
                              trained_plain_gan(communicator, at_once, evaluates)))
            << base::text_of(config);
      }
    }
  });
}

// Gradients of 2-byte types travel as each engine asks for, whichever was made last.
TEST_P(TwoEngines, ReduceEachInTheTypeOfItsOwnConfiguration) {
  on_ranks(GetParam(), [](dist::Communicator& communicator) {
    EngineRun wide(communicator, {.reduce_in_float32 = true}, optim::adamw(), at::kBFloat16);
    EngineRun own(communicator, {.reduce_in_float32 = false}, optim::adamw(), at::kBFloat16);
    const auto gradient_bytes = [&](EngineRun& run) {
      const std::int64_t before = communicator.traffic().bytes(dist::Purpose::kGradient);
      EXPECT_TRUE(run.step(0));
      return communicator.traffic().bytes(dist::Purpose::kGradient) - before;
    };
    const std::int64_t bytes = gradient_bytes(own);
    EXPECT_GT(bytes, 0);
    EXPECT_EQ(gradient_bytes(wide), 2 * bytes);
  });
}

}  // namespace
}  // namespace zero::testing
