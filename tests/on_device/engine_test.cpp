// The engine with a model on a device, on one rank and on more: its stages, two-byte types,
// clipping, gradients that are not finite, loss scales and checkpoints.

#include <ATen/ops/allclose.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <torch/nn/modules/linear.h>

#include <limits>
#include <vector>

#include <tests/support/engine_run.hpp>
#include <tests/support/error_of.hpp>
#include <tests/support/hooked_optimizer.hpp>
#include <tests/support/same_bits.hpp>
#include <tests/support/test_folder.hpp>
#include <zero/optim/master_weights.hpp>

#include "on_device.hpp"

namespace zero::testing {
namespace {

using dist::Communicator;

struct Trained : EngineRun {
  Trained(Communicator& communicator, at::DeviceType on, const EngineConfig& config,
          at::ScalarType dtype = at::kFloat,
          const optim::OptimizerFactory& optimizer = optim::adamw())
      : EngineRun(communicator, config, optimizer, dtype, {17, 11},
                  at::empty({0}, at::TensorOptions(on)).device()) {}
  // If `bad`, the gradient of the second parameter is infinite on the last rank.
  bool step(int number, bool bad = false) {
    make_gradient_infinite(bad && rank == engine.strategy().communicator().size() - 1);
    return EngineRun::step(number);
  }
  bool bad_step(int number) { return step(number, /*bad=*/true); }
  std::vector<at::Tensor> weights() {
    std::vector<at::Tensor> all = EngineRun::weights();
    for (at::Tensor& t : all) {
      EXPECT_EQ(t.device().type(), device.type());
      t = t.cpu();
    }
    return all;
  }
};

optim::OptimizerFactory with_masters() { return optim::with_master_weights(optim::adamw()); }

TEST_P(EngineOn, StagesClipToTheSameBitsAndAsTheCpuDoes) {
  on_each_rank([](Communicator& communicator) {
    std::vector<at::Tensor> first;
    for (const int stage : {0, 1, 2, 3}) {
      SCOPED_TRACE(stage);
      const EngineConfig config{.stage = stage, .accumulation_steps = 2, .clip_norm = 0.05};
      const auto make = sgd(0.1);
      Trained here(communicator, device(), config, at::kFloat, make);
      Trained on_cpu(communicator, at::kCPU, config, at::kFloat, make);
      for (int s = 0; s < 6; ++s) EXPECT_EQ(here.step(s), on_cpu.step(s));
      EXPECT_EQ(here.engine.steps(), 3);
      EXPECT_GT(here.engine.gradient_norm(), 0.05F);
      EXPECT_NEAR(here.engine.gradient_norm(), on_cpu.engine.gradient_norm(), 1e-4);
      const std::vector<at::Tensor> weights = here.weights(), expected = on_cpu.weights();
      for (std::size_t i = 0; i < weights.size(); ++i) {
        EXPECT_TRUE(at::allclose(weights[i], expected[i], 1e-4, 1e-5)) << "parameter " << i;
      }
      if (stage == 0) first = weights;
      EXPECT_TRUE(same_bits(weights, first));
    }
  });
}

TEST_P(EngineOn, TwoByteParametersAreTheRoundingOfTheirMasters) {
  on_each_rank([](Communicator& communicator) {
    std::vector<at::Tensor> first;
    for (const int stage : {0, 1, 2, 3}) {
      SCOPED_TRACE(stage);
      Trained here(communicator, device(), {.stage = stage}, at::kBFloat16, with_masters());
      for (int s = 0; s < 3; ++s) EXPECT_TRUE(here.step(s));
      train::Strategy& strategy = here.engine.strategy();
      for (std::size_t i = 0; i < strategy.list().size(); ++i) {
        const at::Tensor mine = strategy.placement(i).updated.tensor;
        if (!mine.defined()) continue;
        const at::Tensor master = strategy.optimizer().state(mine).at("master");
        EXPECT_EQ(master.device(), mine.device());
        EXPECT_TRUE(at::equal(master.to(at::kBFloat16), mine.detach().view({-1})));
        EXPECT_FALSE(at::equal(master, mine.detach().view({-1}).to(at::kFloat)));
      }
      if (stage == 0) first = here.weights();
      EXPECT_TRUE(same_bits(here.weights(), first));
    }
  });
}

TEST_P(EngineOn, AGradientThatIsNotFiniteIsAnErrorOrSkipsTheStep) {
  on_each_rank([](Communicator& communicator) {
    for (const int stage : {0, 1, 2, 3}) {
      for (const double clip_norm : {0.0, 1.0}) {
        SCOPED_TRACE(fmt::format("stage {}, clip norm {}", stage, clip_norm));
        EngineConfig config{.stage = stage, .clip_norm = clip_norm};
        Trained well(communicator, device(), config);
        Trained fails(communicator, device(), config);
        config.on_nonfinite_gradient = train::OnNonfiniteGradient::kSkip;
        Trained skips(communicator, device(), config);
        for (int s = 0; s < 2; ++s) {
          EXPECT_TRUE(well.step(s));
          EXPECT_TRUE(fails.step(s));
          EXPECT_TRUE(skips.step(s));
          expect_error([&] { fails.bad_step(s); },
                       {"the gradient of 'layers.0.linear.bias' is infinite or NaN on"});
          EXPECT_FALSE(skips.bad_step(s));
        }
        EXPECT_EQ(fails.engine.steps(), 2);
        EXPECT_EQ(skips.engine.skipped_steps(), 2);
        EXPECT_TRUE(same_bits(fails.weights(), well.weights()));
        EXPECT_TRUE(same_bits(skips.weights(), well.weights()));
      }
    }
  });
}

// Norms are read before gradients that no rank has used are dropped.
TEST_P(EngineOn, AGradientThatIsNotFiniteIsNamedBehindOnesThatNobodyUsed) {
  on_each_rank([](Communicator& communicator) {
    for (const int stage : {0, 1, 2, 3}) {
      SCOPED_TRACE(stage);
      torch::nn::Linear unused(3, 3), used(3, 3), after(3, 3);
      torch::nn::Module all;
      all.register_module("unused", unused);
      all.register_module("used", used);
      all.register_module("after", after);
      all.to(device());
      Engine engine(all, communicator, optim::adamw(), {.stage = stage});
      engine.strategy().passes().observe_gradients([](std::size_t i, const at::Tensor& gradient) {
        if (i == 2) gradient.detach().fill_(std::numeric_limits<double>::infinity());
      });
      const at::Tensor x = at::ones({2, 3}).to(device());
      engine.backward(engine.forward([&] { return after->forward(used->forward(x)).sum(); }));
      expect_error([&] { engine.step(); }, {"the gradient of 'used.weight' is infinite or NaN on"});
    }
  });
}

TEST_P(EngineOn, AnOverflowHalvesTheLossScaleDownToAnError) {
  on_each_rank([](Communicator& communicator) {
    for (const int stage : {0, 1, 2, 3}) {
      SCOPED_TRACE(stage);
      const EngineConfig config{.stage = stage, .loss_scale = {.initial = 4}};
      Trained here(communicator, device(), config, at::kHalf, with_masters());
      EXPECT_TRUE(here.step(0));
      const std::vector<at::Tensor> before = here.weights();
      EXPECT_FALSE(here.bad_step(1));
      EXPECT_EQ(here.engine.loss_scale(), 2);
      EXPECT_FALSE(here.bad_step(1));
      EXPECT_EQ(here.engine.loss_scale(), 1);
      expect_error([&] { here.bad_step(1); },
                   {"step 3: the gradient of 'layers.0.linear.bias' is infinite",
                    "loss scale of 1"});  // two were skipped
      EXPECT_TRUE(same_bits(here.weights(), before));
      EXPECT_EQ(here.engine.skipped_steps(), 2);
      EXPECT_TRUE(here.step(1));
    }
  });
}

TEST_P(EngineOn, ACheckpointGoesOnAtAnotherStageToTheSameBits) {
  const TestFolder folder;
  on_each_rank([&](Communicator& communicator) {
    for (const int stage : {0, 1, 2, 3}) {
      SCOPED_TRACE(stage);
      const auto place = folder / fmt::format("{}", stage);
      EngineConfig config{.stage = stage, .loss_scale = {.initial = 1024}};
      Trained whole(communicator, device(), config, at::kHalf, with_masters());
      for (int s = 0; s < 2; ++s) EXPECT_TRUE(whole.step(s));
      EXPECT_FALSE(whole.bad_step(2));
      whole.engine.save(place);
      config.stage = 3 - stage;
      Trained resumed(communicator, device(), config, at::kHalf, with_masters());
      EXPECT_TRUE(resumed.engine.load(place));
      EXPECT_EQ(resumed.engine.steps(), 2);
      EXPECT_EQ(resumed.engine.loss_scale(), 512);
      for (int s = 2; s < 4; ++s) {
        EXPECT_TRUE(whole.step(s));
        EXPECT_TRUE(resumed.step(s));
      }
      EXPECT_TRUE(same_bits(resumed.weights(), whole.weights()));
    }
  });
}

}  // namespace
}  // namespace zero::testing
