// What a step asks of the host and of a device, beside a step of the plain module: kernel launches,
// host waits and exchanges.

#include <ATen/ops/randint.h>
#include <fmt/format.h>

#include <cstdint>
#include <memory>
#include <string>

#include <tests/support/accelerator/emulated_test.hpp>
#include <tests/support/pipeline_run.hpp>
#include <tests/support/ranks.hpp>
#include <tests/support/split_run.hpp>
#include <tools/models/presets.hpp>
#include <zero/engine.hpp>
#include <zero/nn/llama.hpp>
#include <zero/optim/adamw.hpp>
#include <zero/optim/master_weights.hpp>

#include "toy_on.hpp"

namespace zero::testing {
namespace {

using emulated::Checker;
using emulated::kDevice;

struct StepCost {
  emulated::Counts device;
  std::int64_t exchanges = 0;  // of numbers and texts, by the hosts
};

std::shared_ptr<nn::Llama> model_on_device(const nn::LlamaConfig& config) {
  auto model = std::make_shared<nn::Llama>(config);
  nn::SeededValues values(/*seed=*/5);
  nn::initialize_parameters(*model, values);
  model->to(kDevice);
  return model;
}

data::Batch batch_on_device(const nn::LlamaConfig& config) {
  const at::Tensor ids = at::randint(config.vocabulary, {1, 17}, at::kLong).to(kDevice);
  return {.inputs = ids.narrow(1, 0, 16), .targets = ids.narrow(1, 1, 16), .loss_terms = 16};
}

// Of the third of three steps: states are there, and what is measured once has been measured.
template <typename Step>
StepCost cost_of(Step step, dist::Communicator& communicator) {
  for (int s = 0; s < 2; ++s) step();
  const emulated::Counts before = Checker::get().counts();
  const dist::Traffic sent = communicator.traffic();
  step();
  const emulated::Counts after = Checker::get().counts();
  const dist::Traffic of_step = communicator.traffic().since(sent);
  return {{after.launches - before.launches, after.host_waits - before.host_waits,
           after.events - before.events},
          of_step.calls(dist::Purpose::kControl) + of_step.calls(dist::Purpose::kSetup)};
}

StepCost of_plain_module(dist::Communicator& communicator, const nn::LlamaConfig& config) {
  const auto model = model_on_device(config);
  const auto optimizer = optim::adamw()(model->parameters());
  const data::Batch batch = batch_on_device(config);
  return cost_of(
      [&] {
        for (const at::Tensor& p : model->parameters()) p.mutable_grad().reset();
        const at::Tensor loss = data::loss_of(*model, batch);
        loss.backward();
        optimizer->step();
        loss.item<float>();
      },
      communicator);
}

// With the loss and the norm of each step.
StepCost of_engine(dist::Communicator& communicator, const nn::LlamaConfig& config,
                   const EngineConfig& engine_config, std::size_t& units) {
  const auto model = model_on_device(config);
  const auto adamw = optim::adamw();
  Engine engine(*model, communicator,
                config.dtype == at::kFloat ? adamw : optim::with_master_weights(adamw),
                engine_config);
  engine.on_step([](const StepMetrics& metrics) {
    EXPECT_GT(metrics.loss, 0);
    EXPECT_GT(metrics.gradient_norm, 0);
  });
  const data::Batch batch = batch_on_device(config);
  units = engine.strategy().list().units.size();
  return cost_of(
      [&] {
        engine.backward(forward_batch(engine, batch));
        EXPECT_TRUE(engine.step());
      },
      communicator);
}

constexpr int kOffloads = 4;  // in place of a stage

class StepCosts : public ::testing::TestWithParam<int> {};

TEST_P(StepCosts, AreOneHostWaitFewExchangesAndFewLaunchesMoreThanThePlainModules) {
  const RankOptions ranks{.world_size = GetParam(), .order = dist::ReductionOrder::kNative};
  emulated::on_emulated_ranks(ranks, [](dist::Communicator& communicator) {
    const nn::LlamaConfig config = tools::preset("llama-20m");
    const StepCost plain = of_plain_module(communicator, config);
    for (const int stage : {0, 1, 2, 3, kOffloads}) {
      const bool offloads = stage == kOffloads;
      const std::string name = offloads ? "engine3, host" : fmt::format("engine{}", stage);
      const EngineConfig engine{
          .stage = offloads ? 3 : stage, .offload = offloads ? "host" : "none", .clip_norm = 0.1};
      std::size_t units = 0;
      StepCost cost = of_engine(communicator, config, engine, units);
      EXPECT_EQ(cost.device.host_waits, 1) << name;
      // A gradient that leaves and a parameter that comes back are two launches.
      if (offloads) cost.device.launches -= 2 * std::ssize(nn::Llama(config).parameters());
      // Before backward, before the update, and of the callback. At stage 0 a program may look at
      // gradients after backward, where those that nobody used are undefined. An update on the host
      // may fail.
      EXPECT_EQ(cost.exchanges, stage == 0 || offloads ? 4 : 3) << name;
      const double most =
          1.05 * static_cast<double>(plain.device.launches) + 6.0 * static_cast<double>(units);
      EXPECT_LE(static_cast<double>(cost.device.launches), most) << name;
    }
  });
}

TEST_P(StepCosts, AreOneHostWaitWithMasterWeightsAndALossScale) {
  emulated::on_emulated_ranks({.world_size = GetParam()}, [](dist::Communicator& communicator) {
    for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
      for (const int stage : {0, 1, 2, 3}) {
        SCOPED_TRACE(fmt::format("{}, stage {}", c10::toString(dtype), stage));
        EngineConfig engine{.stage = stage, .clip_norm = 0.1};
        if (dtype == at::kHalf) engine.loss_scale = {.initial = 1024};
        std::size_t units = 0;
        const StepCost cost = of_engine(communicator, llama_to_split(dtype), engine, units);
        EXPECT_EQ(cost.device.host_waits, 1);
        // Gradients times a loss scale are not shown to the program after backward.
        EXPECT_EQ(cost.exchanges, stage == 0 && dtype == at::kBFloat16 ? 4 : 3);
      }
    }
  });
}

// Also where gradients are quantized piece by piece, and in the trainer.
TEST_P(StepCosts, AreOneHostWaitAndTwoExchangesInEveryMode) {
  emulated::on_emulated_ranks({.world_size = GetParam()}, [](dist::Communicator& communicator) {
    tools::Registry registry;
    tools::register_all_chapters(registry);
    std::vector<std::string> modes = registry.modes();
    for (int stage = 0; stage < 4; ++stage) {
      modes.push_back(fmt::format("engine{}:offload=host", stage));
    }
    for (const std::string& mode : modes) {
      ToyOn run(communicator, mode, kDevice);
      const data::Batch batch = moved_to(kDevice, run.toy.batch(communicator.rank(), 0));
      const StepCost cost = cost_of([&] { run.trainer->step({batch}); }, communicator);
      EXPECT_EQ(cost.device.host_waits, 1) << mode;
      // An update on the host may fail.
      EXPECT_EQ(cost.exchanges, mode.ends_with(":offload=host") ? 3 : 2) << mode;
    }
  });
}

TEST_P(StepCosts, AreTheSameInAPipelineWithManyMicroBatches) {
  emulated::on_emulated_ranks({.world_size = 2 * GetParam()}, [](dist::Communicator& communicator) {
    const ThreeAxes axes(communicator, /*stages=*/2);
    for (const bool tied : {false, true}) {
      PipelineShape shape{.tied = tied};
      PipelineRank on_cpu(axes, shape);
      shape.device = kDevice;
      PipelineRank rank(axes, shape);
      const std::vector<data::Batch> batches = rank.batches(/*step=*/0, /*count=*/3);
      std::vector<double> losses;
      const StepCost cost =
          cost_of([&] { losses.push_back(rank.trainer.step(batches).loss); }, communicator);
      EXPECT_EQ(cost.device.host_waits, 1) << tied;
      EXPECT_EQ(cost.exchanges, 2) << tied;
      for (const double loss : losses) EXPECT_EQ(loss, on_cpu.step(0, 3).loss) << tied;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, StepCosts, ::testing::Values(1, 2), name_of_ranks);

}  // namespace
}  // namespace zero::testing
