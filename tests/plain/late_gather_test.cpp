// Values that are still on their way when step() has returned (defer_parameter_gather), read by the
// forward of another engine: a generator learns through its critic. The measure is the same loop
// without that option, which other tests compare with the plain program.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/softplus.h>
#include <fmt/format.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <memory>

#include <tests/support/ranks.hpp>
#include <zero/train/unsharded_parameters.hpp>

#include "plain_run.hpp"

namespace zero::testing {
namespace {

torch::nn::Sequential layers(std::int64_t from, std::int64_t to) {
  return torch::nn::Sequential(torch::nn::Linear(from, 32), torch::nn::Tanh(),
                               torch::nn::Linear(32, to));
}

at::Tensor noise(int rank, int step) {
  at::manual_seed(100 * step + rank);
  return at::randn({4, 8});
}

// The weights of both after three steps of each.
std::vector<at::Tensor> trained_gan(dist::Communicator& communicator, const EngineConfig& config,
                                    bool evaluates) {
  at::manual_seed(7);
  torch::nn::Sequential made = layers(8, 8), judge = layers(8, 1);
  Engine generator(*made, communicator, wrapped_adamw, config);
  Engine critic(*judge, communicator, wrapped_adamw, config);
  std::vector<at::Tensor> seen;
  for (int step = 0; step < 3; ++step) {
    const at::Tensor z = noise(communicator.rank(), step);
    const at::Tensor fake = generator.evaluate([&] { return made->forward(z); });
    critic.backward(critic.forward([&] { return at::softplus(judge->forward(fake)).mean(); }));
    critic.step();
    const auto loss = [&] { return at::softplus(-judge->forward(made->forward(z))).mean(); };
    if (evaluates) seen.push_back(generator.evaluate(loss));
    generator.backward(generator.forward(loss));
    generator.step();
  }
  for (Engine* const engine : {&generator, &critic}) {
    for (const at::Tensor& weight : whole_weights(engine->strategy())) seen.push_back(weight);
  }
  return seen;
}

ZERO_TESTS_ON_RANKS(LateGather, 1, 2, 3);

TEST_P(LateGather, IsWaitedForByTheForwardOfAnotherEngine) {
  on_ranks(GetParam(), [](dist::Communicator& communicator) {
    for (const int stage : {0, 1, 2}) {
      for (const std::int64_t bucket : {1 << 9, 1 << 20}) {
        for (const bool evaluates : {false, true}) {
          EngineConfig options{.stage = stage, .bucket_bytes = bucket};
          const auto expected = trained_gan(communicator, options, evaluates);
          options.defer_parameter_gather = true;
          EXPECT_TRUE(same_bits(trained_gan(communicator, options, evaluates), expected))
              << fmt::format("stage {}, buckets of {}", stage, bucket);
        }
      }
    }
  });
}

// As by LibTorch, if the plain critic had been updated in between.
TEST_P(LateGather, IsNoPartOfAGraphThatReadTheValuesBefore) {
  on_ranks(GetParam(), [](dist::Communicator& communicator) {
    for (const int stage : {0, 1, 2, 3}) {
      at::manual_seed(7);
      torch::nn::Sequential made = layers(8, 8), judge = layers(8, 1);
      const EngineConfig config{.stage = stage};
      Engine generator(*made, communicator, wrapped_adamw, config);
      Engine critic(*judge, communicator, wrapped_adamw, config);
      const at::Tensor z = noise(communicator.rank(), 0);
      const auto units = critic.strategy().list().units.size();
      const auto whole = [&] {
        std::vector<std::unique_ptr<train::UnshardedParameters>> held;
        for (std::size_t u = 0; u < units; ++u) {
          held.push_back(std::make_unique<train::UnshardedParameters>(critic.strategy(), u));
        }
        return held;
      };
      critic.backward(critic.forward([&] { return judge->forward(z).mean(); }));
      at::Tensor loss;
      {
        const auto held = whole();
        loss = generator.forward([&] { return judge->forward(made->forward(z)).mean(); });
      }
      critic.step();
      const auto held = whole();
      EXPECT_THROW(generator.backward(loss), c10::Error) << "stage " << stage;
      generator.give_up_step();
    }
  });
}

}  // namespace
}  // namespace zero::testing
