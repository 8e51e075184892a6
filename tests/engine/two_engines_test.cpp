// Two engines on one communicator, as a generator and its discriminator have them. The measure is
// the plain modules in one process, with the batches of all ranks.

#include <ATen/core/grad_mode.h>
#include <ATen/ops/softplus.h>
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <functional>
#include <utility>
#include <vector>

#include <tests/support/error_of.hpp>
#include <tests/support/ranks.hpp>
#include <tests/support/toy.hpp>
#include <tests/support/whole_weights.hpp>
#include <zero/base/error.hpp>
#include <zero/engine/engine.hpp>
#include <zero/optim/adamw.hpp>

namespace zero::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class TwoEngines : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, TwoEngines, ::testing::Values(2, 3),
                         [](const auto& info) { return fmt::format("N{}", info.param); });

nn::MlpConfig sizes(std::int64_t inputs, std::int64_t outputs) {
  nn::MlpConfig config;
  config.inputs = inputs;
  config.outputs = outputs;
  return config;
}

// Says how real its input looks. The batch has real samples as inputs and made ones as targets.
class Discriminator final : public nn::Mlp {
 public:
  Discriminator() : Mlp(sizes(5, 1)) {}
  at::Tensor score(const at::Tensor& samples) { return predict({.inputs = samples}); }
  at::Tensor loss(const data::Batch& batch) override {
    return at::softplus(-score(batch.inputs)).mean() + at::softplus(score(batch.targets)).mean();
  }
};

// Makes samples from noise, the batch's inputs.
class Generator final : public nn::Mlp {
 public:
  explicit Generator(Discriminator& judge) : Mlp(sizes(7, 5)), judge_(judge) {}
  at::Tensor make(const at::Tensor& noise) { return predict({.inputs = noise}); }
  at::Tensor loss(const data::Batch& batch) override {
    return at::softplus(-judge_.score(make(batch.inputs))).mean();
  }

 private:
  Discriminator& judge_;
};

struct Gan {
  Gan() : values(3) {
    const nn::DeferredStorage deferred;
    discriminator = std::make_shared<Discriminator>();
    generator = std::make_shared<Generator>(*discriminator);
  }
  static at::Tensor random(int rank, int step, std::int64_t width) {
    at::Generator source =
        at::detail::createCPUGenerator(static_cast<std::uint64_t>(100 * width + 10 * rank + step));
    return at::randn({4, width}, source);
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
constexpr Loop kLoops[] = {Loop::kThrough, Loop::kFrozen, Loop::kShared};

// One side of a step. `train` makes the loss, runs its backward, and updates.
using Train = std::function<void(const std::function<at::Tensor(int rank)>& loss)>;

// Two steps. `ranks`: whose batches this process has.
struct Player {
  Gan& gan;
  std::function<at::Tensor(nn::Model& model, const data::Batch& batch)> forward;
  Train train_discriminator;
  Train train_generator;

  void play(Loop loop, const std::vector<int>& ranks) const {
    for (int step = 0; step < 2; ++step) {
      std::map<int, at::Tensor> shared;
      for (const int r : ranks) {
        const at::AutoGradMode graph(loop == Loop::kShared);
        shared[r] = gan.generator->make(Gan::random(r, step, 7));
      }
      train_discriminator([&](int r) {
        return forward(*gan.discriminator,
                       {.inputs = Gan::random(r, step, 5), .targets = shared[r].detach()});
      });
      if (loop == Loop::kFrozen) gan.freeze_discriminator(true);
      train_generator([&](int r) {
        if (loop != Loop::kShared) {
          return forward(*gan.generator, {.inputs = Gan::random(r, step, 7)});
        }
        return at::softplus(-gan.discriminator->score(shared[r])).mean();
      });
      if (loop == Loop::kFrozen) gan.freeze_discriminator(false);
    }
  }
};

std::vector<at::Tensor> parameters_of(nn::Model& model) {
  std::vector<at::Tensor> tensors;
  for (const nn::Parameter& p : nn::list_parameters(model).parameters) tensors.push_back(p.tensor);
  return tensors;
}

// Weights of discriminator and generator after two steps of the plain modules.
std::vector<at::Tensor> plain_weights(Loop loop, int ranks) {
  Gan gan;
  nn::initialize_parameters(*gan.discriminator, gan.values);
  nn::initialize_parameters(*gan.generator, gan.values);
  const auto trainer = [&](nn::Model& model) -> Train {
    const auto parameters = parameters_of(model);
    const std::shared_ptr<optim::Optimizer> optimizer = optim::adamw()(parameters);
    return [=, &gan](const auto& loss) {
      std::vector<at::Tensor> sums(parameters.size());
      for (int r = 0; r < ranks; ++r) {
        for (at::Tensor& p : gan.discriminator->parameters()) p.mutable_grad().reset();
        for (at::Tensor& p : gan.generator->parameters()) p.mutable_grad().reset();
        loss(r).backward();
        for (std::size_t i = 0; i < parameters.size(); ++i) {
          const at::Tensor& gradient = parameters[i].grad();
          sums[i] = r == 0 ? gradient.clone() : sums[i] + gradient;
        }
      }
      for (std::size_t i = 0; i < parameters.size(); ++i) {
        parameters[i].mutable_grad() = sums[i] / ranks;
      }
      optimizer->step();
    };
  };
  std::vector<int> all;
  for (int r = 0; r < ranks; ++r) all.push_back(r);
  Player{gan, [](nn::Model& model, const data::Batch& batch) { return model.loss(batch); },
         trainer(*gan.discriminator), trainer(*gan.generator)}
      .play(loop, all);
  std::vector<at::Tensor> weights = parameters_of(*gan.discriminator);
  for (const at::Tensor& p : parameters_of(*gan.generator)) weights.push_back(p);
  return weights;
}

struct Engines {
  Engines(Gan& gan, dist::Communicator& communicator, int stage)
      : discriminator(*gan.discriminator, communicator, optim::adamw(),
                      {.overlap = {.stage = stage}}, &gan.values),
        generator(*gan.generator, communicator, optim::adamw(), {.overlap = {.stage = stage}},
                  &gan.values) {}
  Engine discriminator;
  Engine generator;
};

TEST_P(TwoEngines, TrainAGeneratorAndItsDiscriminatorAsThePlainModules) {
  on_ranks(GetParam(), [](dist::Communicator& communicator) {
    for (const Loop loop : kLoops) {
      const std::vector<at::Tensor> expected = plain_weights(loop, communicator.size());
      for (const int stage : {0, 1, 2, 3}) {
        Gan gan;
        Engines engines(gan, communicator, stage);
        const auto trainer = [&](Engine& engine) -> Train {
          return [&](const auto& loss) {
            engine.backward(loss(communicator.rank()));
            EXPECT_TRUE(engine.step());
          };
        };
        Player{gan,
               [&](nn::Model& model, const data::Batch& batch) {
                 Engine& engine =
                     &model == gan.generator.get() ? engines.generator : engines.discriminator;
                 return engine.forward(batch);
               },
               trainer(engines.discriminator), trainer(engines.generator)}
            .play(loop, {communicator.rank()});
        std::vector<at::Tensor> weights = whole_weights(engines.discriminator.strategy());
        for (const at::Tensor& p : whole_weights(engines.generator.strategy())) {
          weights.push_back(p);
        }
        ASSERT_EQ(weights.size(), expected.size());
        for (std::size_t i = 0; i < weights.size(); ++i) {
          EXPECT_TRUE(at::equal(weights[i], expected[i]))
              << "loop " << static_cast<int>(loop) << ", stage " << stage << ", parameter " << i;
        }
      }
    }
  });
}

// The plain modules would add the generator's gradients of the discriminator to its own.
TEST_P(TwoEngines, RefuseABackwardThroughAModelWhoseStepIsOpen) {
  on_ranks(GetParam(), [](dist::Communicator& communicator) {
    for (const int stage : {0, 1, 2, 3}) {
      Gan gan;
      Engines engines(gan, communicator, stage);
      const data::Batch noise{.inputs = Gan::random(communicator.rank(), 0, 7)};
      const data::Batch samples{.inputs = Gan::random(communicator.rank(), 0, 5),
                                .targets = Gan::random(communicator.rank(), 1, 5)};
      engines.discriminator.backward(engines.discriminator.forward(samples));
      EXPECT_THAT(error_of([&] { engines.generator.backward(engines.generator.forward(noise)); }),
                  AllOf(HasSubstr("parameter 'output."), HasSubstr("did not run")))
          << stage;
      engines.generator.give_up_step();
      EXPECT_TRUE(engines.discriminator.step());
      engines.generator.backward(engines.generator.forward(noise));
      EXPECT_TRUE(engines.generator.step());
    }
  });
}

// Gradients of 2-byte types travel as each engine asks for, whichever was made last.
TEST_P(TwoEngines, ReduceEachInTheTypeOfItsOwnConfiguration) {
  on_ranks(GetParam(), [](dist::Communicator& communicator) {
    const auto model = [] {
      const nn::DeferredStorage deferred;
      nn::MlpConfig config;
      config.dtype = at::kBFloat16;
      return std::make_shared<nn::Mlp>(config);
    };
    const auto first = model(), second = model();
    nn::SeededValues values(5);
    Engine wide(*first, communicator, optim::adamw(), {.reduce_in_float32 = true}, &values);
    Engine own(*second, communicator, optim::adamw(), {.reduce_in_float32 = false}, &values);
    const auto gradient_bytes = [&](Engine& engine) {
      const std::int64_t before = communicator.traffic().bytes(dist::Purpose::kGradient);
      engine.backward(engine.forward(Toy().batch(communicator.rank(), 0)));
      EXPECT_TRUE(engine.step());
      return communicator.traffic().bytes(dist::Purpose::kGradient) - before;
    };
    const std::int64_t bytes = gradient_bytes(own);
    EXPECT_GT(bytes, 0);
    EXPECT_EQ(gradient_bytes(wide), 2 * bytes);
  });
}

}  // namespace
}  // namespace zero::testing
