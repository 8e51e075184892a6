// Optimizer states on the host, or on its disk, and parameters on the emulated accelerator: the
// bits of states with the parameters, the bytes on the bus and on the device by formula, and
// nothing that the checker finds.

#include <fmt/format.h>

#include <tests/support/accelerator/device_memory.hpp>
#include <tests/support/accelerator/emulated_test.hpp>
#include <tests/support/engine_run.hpp>
#include <tests/support/hooked_optimizer.hpp>
#include <tests/support/moved_to.hpp>
#include <tests/support/pipeline_run.hpp>
#include <tests/support/test_folder.hpp>
#include <tests/support/whole_state.hpp>
#include <zero/engine.hpp>
#include <zero/optim/adamw.hpp>
#include <zero/optim/master_weights.hpp>
#include <zero/train/unsharded_parameters.hpp>

namespace zero::testing {
namespace {

using emulated::kDevice;

constexpr std::int64_t kTile = 4096;  // of a disk, the smallest

optim::OptimizerFactory adamw_of(at::ScalarType dtype) {
  const optim::OptimizerFactory adamw = optim::adamw({.learning_rate = 0.01});
  return dtype == at::kFloat ? adamw : optim::with_master_weights(adamw);
}

EngineConfig config_of(int stage, const std::string& offload) {
  return {.stage = stage,
          .bucket_bytes = 8000,
          .in_flight_bytes = 1,  // each is waited for when the next one begins
          .offload = offload,
          .offload_tile_bytes = kTile,
          .on_nonfinite_gradient = train::OnNonfiniteGradient::kSkip};
}

// Of what this rank updates.
std::int64_t updated_bytes_of(const train::Strategy& strategy) {
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < strategy.list().size(); ++i) {
    const at::Tensor mine = strategy.placement(i).updated.tensor;
    if (mine.defined()) sum += static_cast<std::int64_t>(mine.nbytes());
  }
  return sum;
}

TrainedModel moved_to_cpu(TrainedModel trained) {
  for (auto* const all : {&trained.weights, &trained.gradients}) {
    for (auto& [name, tensor] : *all) tensor = tensor.cpu();
  }
  return trained;
}

struct OffloadRun : EngineRun {
  OffloadRun(dist::Communicator& communicator, at::Device device, const EngineConfig& config,
             at::ScalarType dtype, const optim::OptimizerFactory& optimizer, std::size_t layers = 2)
      : EngineRun(communicator, config, optimizer, dtype, std::vector<std::int64_t>(layers, 61),
                  device) {}
  OffloadRun(dist::Communicator& communicator, at::Device device, const EngineConfig& config,
             at::ScalarType dtype = at::kFloat)
      : OffloadRun(communicator, device, config, dtype, adamw_of(dtype)) {}

  bool bad_step(int number) {
    make_gradient_infinite(rank == 0);
    const bool updated = step(number);
    make_gradient_infinite(false);
    return updated;
  }
  WholeState state() {
    WholeState all = whole_state(engine.strategy());
    for (auto& [name, tensor] : all) tensor = tensor.cpu();
    return all;
  }
  std::int64_t updated_bytes() { return updated_bytes_of(engine.strategy()); }
  // A program may write into the gradients that this rank updates, after backward().
  void step_with_turned_gradients(int number) {
    engine.backward(forward(number));
    for (std::size_t i = 0; i < engine.strategy().list().size(); ++i) {
      const at::Tensor mine = engine.strategy().placement(i).updated.tensor;
      if (mine.defined() && mine.grad().defined()) mine.mutable_grad().mul_(-3);
    }
    engine.step();
  }
  bool on_host() { return engine.strategy().optimizer().is_offloaded(); }
  optim::OffloadTraffic traffic() { return engine.strategy().optimizer().offload_traffic(); }
};

std::int64_t device_bytes() {
  return emulated::DeviceMemory::get().getDeviceStats(0).requested_bytes[0].current;
}

void on_emulated(int ranks, const std::function<void(dist::Communicator&, int stage)>& body) {
  emulated::on_emulated_ranks({.world_size = ranks}, [&](dist::Communicator& communicator) {
    for (const int stage : {0, 1, 2, 3}) {
      SCOPED_TRACE(fmt::format("stage {}", stage));
      body(communicator, stage);
      emulated::expect_clean();
    }
  });
}

ZERO_TESTS_ON_RANKS(EmulatedOffload, 1, 2, 3, 4);

// What is trained, with which settings.
struct Program {
  const char* name;
  std::vector<at::ScalarType> dtypes;
  bool on_disk;  // also
  std::function<void(EngineConfig& config)> set;
  std::function<void(OffloadRun& run)> trains;
  optim::OptimizerFactory optimizer = {};  // AdamW
};

// Into parameters between steps, and into gradients after backward().
void train_and_write(OffloadRun& run) {
  run.steps(0, 2);
  train::Strategy& strategy = run.engine.strategy();
  for (std::size_t u = 0; u < strategy.list().units.size(); ++u) {
    const train::UnshardedParameters whole(strategy, u);
    for (const std::size_t i : strategy.list().units[u].parameters) {
      const at::NoGradGuard no_grad;
      strategy.list().parameters[i].tensor.view({-1}).narrow(0, 0, 1).fill_(0.25);
    }
  }
  run.step(2);
  run.step_with_turned_gradients(3);
}

std::vector<Program> programs() {
  const auto clip = [](EngineConfig& config) { config.clip_norm = 0.05; };
  return {{"clipped steps of two micro-batches, one left out",
           {at::kFloat, at::kBFloat16, at::kHalf},
           true,
           [clip](EngineConfig& config) {
             clip(config);
             config.accumulation_steps = 2;
           },
           [](OffloadRun& run) {
             run.steps(0, 5);
             EXPECT_FALSE(run.bad_step(5));
             run.steps(6, 10);
             EXPECT_EQ(run.engine.steps(), 4);
           }},
          {"what the program writes", {at::kFloat, at::kBFloat16}, false, clip, train_and_write},
          {"micro-batches that are reduced one by one",
           {at::kBFloat16},
           false,
           [](EngineConfig& config) {
             config.accumulation_steps = 2;
             config.reduce_each_micro_batch = true;
           },
           [](OffloadRun& run) {
             run.steps(0, 6);
             EXPECT_EQ(run.traffic().to_host_bytes, run.on_host() ? 4 * run.updated_bytes() : 0);
           }},
          {"any optimizer",
           {at::kFloat},
           false,
           [](EngineConfig&) {},
           [](OffloadRun& run) { run.steps(0, 3); },
           sgd(0.1)}};
}

TEST_P(EmulatedOffload, HasTheBitsOfStatesOnTheDevice) {
  const TestFolder folder;
  on_emulated(GetParam(), [&](dist::Communicator& communicator, int stage) {
    for (const Program& program : programs()) {
      for (const at::ScalarType dtype : program.dtypes) {
        SCOPED_TRACE(fmt::format("{} {}", program.name, c10::toString(dtype)));
        const auto trained = [&](at::Device device, const std::string& where) {
          EngineConfig config = config_of(stage, where);
          program.set(config);
          if (dtype == at::kHalf) config.loss_scale = {.initial = 1024};
          OffloadRun run(communicator, device, config, dtype,
                         program.optimizer ? program.optimizer : adamw_of(dtype));
          program.trains(run);
          EXPECT_EQ(run.engine.strategy().optimizer().is_offloaded(), where != "none");
          return run.state();
        };
        const WholeState expected = trained(at::kCPU, "none");
        EXPECT_TRUE(same_state(trained(kDevice, "host"), expected));
        if (!program.on_disk) continue;
        EXPECT_TRUE(same_state(trained(kDevice, folder.path().string()), expected));
      }
    }
  });
}

TEST_P(EmulatedOffload, MovesEachGradientAndEachParameterOnce) {
  const TestFolder folder;
  on_emulated(GetParam(), [&](dist::Communicator& communicator, int stage) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      EngineConfig config = config_of(stage, "host");
      config.clip_norm = 0.05;
      OffloadRun run(communicator, kDevice, config, dtype);
      config.offload = folder.path().string();
      OffloadRun on_disk(communicator, kDevice, config, dtype);
      OffloadRun on_disk_of_cpu(communicator, at::kCPU, config, dtype);
      const std::int64_t once = run.updated_bytes();
      const auto expect_moved = [&](std::int64_t out, std::int64_t back) {
        EXPECT_EQ(run.traffic().to_host_bytes, out * once);
        EXPECT_EQ(run.traffic().to_device_bytes, back * once);
      };
      run.step(0);
      expect_moved(2, 1);  // the host makes its copy of the parameters
      run.step(1);
      expect_moved(3, 2);
      run.bad_step(2);
      expect_moved(4, 2);
      run.step(3);
      expect_moved(5, 3);
      on_disk.steps(0, 3);
      on_disk_of_cpu.steps(0, 3);
      EXPECT_EQ(on_disk.traffic().to_host_bytes, 4 * once);
      EXPECT_EQ(on_disk.traffic().to_device_bytes, 3 * once);
      EXPECT_EQ(on_disk.traffic().read_bytes, on_disk_of_cpu.traffic().read_bytes);
      EXPECT_EQ(on_disk.traffic().written_bytes, on_disk_of_cpu.traffic().written_bytes);
    }
  });
}

// In mixed precision 4 P/N at stage 3: parameters and gradients.
TEST_P(EmulatedOffload, LeavesNoOptimizerStateOnTheDevice) {
  const TestFolder folder;
  on_emulated(GetParam(), [&](dist::Communicator& communicator, int stage) {
    for (const std::string& offload : {std::string("host"), folder.path().string()}) {
      const std::int64_t before = device_bytes();
      OffloadRun run(communicator, kDevice, config_of(stage, offload), at::kBFloat16);
      run.steps(0, 2);
      run.engine.backward(run.forward(2));
      train::Strategy& strategy = run.engine.strategy();
      strategy.optimizer_step();  // gradients stay
      strategy.sync_parameters();
      const std::int64_t held = device_bytes() - before;
      const train::ModelStateBytes formula = strategy.costs().at_rest;
      EXPECT_EQ(formula.optimizer, 0);
      EXPECT_LE(held - formula.total(), 64);  // the loss
      EXPECT_GE(held, formula.total());
      if (stage == 3) {
        EXPECT_GE(formula.total(), 2 * run.updated_bytes());
        EXPECT_LE(formula.total(), 2 * run.updated_bytes() + 2048);  // padding
      }
    }
  });
}

// Each bucket is copied when the next one is reduced: of eight layers the last five at least.
TEST_P(EmulatedOffload, GradientsLeaveWhileBackwardRuns) {
  on_emulated(GetParam(), [](dist::Communicator& communicator, int stage) {
    OffloadRun run(communicator, kDevice, config_of(stage, "host"), at::kFloat,
                   adamw_of(at::kFloat), /*layers=*/8);
    run.step(0);
    const optim::Optimizer& optimizer = run.engine.strategy().optimizer();
    const std::int64_t before = optimizer.offload_traffic().to_host_bytes;
    std::int64_t seen = 0;  // when the last gradient is there
    run.engine.strategy().passes().observe_gradients([&](std::size_t, const at::Tensor&) {
      seen = optimizer.offload_traffic().to_host_bytes - before;
    });
    run.step(1);
    EXPECT_GT(2 * seen, run.updated_bytes());
  });
}

TEST_P(EmulatedOffload, CheckpointsGoFromTheHostToTheDeviceAndBack) {
  const TestFolder folder;
  on_emulated(GetParam(), [&](dist::Communicator& communicator, int stage) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      for (const bool saves_offloaded : {true, false}) {
        for (const bool behind : {true, false}) {
          const auto place = folder / fmt::format("{}{}{}{}", stage, c10::toString(dtype),
                                                  saves_offloaded, behind);
          const auto where = [](bool offloaded) { return offloaded ? "host" : "none"; };
          OffloadRun saves(communicator, kDevice, config_of(stage, where(saves_offloaded)), dtype);
          saves.steps(0, 2);
          saves.engine.save(place, {.behind = behind});
          saves.steps(2, 4);
          saves.engine.finish_save();
          OffloadRun loads(communicator, kDevice, config_of(3 - stage, where(!saves_offloaded)),
                           dtype);
          loads.step(9);
          EXPECT_TRUE(loads.engine.load(place));
          loads.steps(2, 4);
          EXPECT_TRUE(same_state(loads.state(), saves.state()));
        }
      }
    }
  });
}

// Groups of ranks: a gradient is complete when it is summed between them.
TEST(EmulatedOffloadGroups, HaveTheBitsOfStatesOnTheDevice) {
  emulated::on_emulated_ranks({.world_size = 4}, [](dist::Communicator& communicator) {
    for (const char* more :
         {R"({"shard_size": 2})", R"({"secondary_shards": true, "group_size": 2})",
          R"({"quantize_gradients": true, "group_size": 2})"}) {
      SCOPED_TRACE(more);
      const auto trained = [&](at::Device device, const std::string& where) {
        EngineConfig config = engine_config(more);
        config.offload = config_of(3, where).offload;
        config.clip_norm = 0.05;
        OffloadRun run(communicator, device, config, at::kBFloat16);
        run.steps(0, 3);
        const bool on_host = where == "host";
        EXPECT_EQ(run.traffic().to_host_bytes, on_host ? 4 * run.updated_bytes() : 0);
        run.step_with_turned_gradients(3);
        EXPECT_EQ(run.traffic().to_host_bytes, on_host ? 6 * run.updated_bytes() : 0);
        return run.state();
      };
      EXPECT_TRUE(same_state(trained(kDevice, "host"), trained(at::kCPU, "none")));
    }
  });
}

// A tensor axis with cut sequences adds up the gradients of norms after the reduction: no bucket
// with one of them is copied before. In a pipeline each stage updates its part.
TEST(EmulatedOffloadAxes, HaveTheBitsOfStatesOnTheDeviceAndMoveEachGradientOnce) {
  emulated::on_emulated_ranks({.world_size = 4}, [](dist::Communicator& communicator) {
    for (const auto& [stages, tensor_ranks] : {std::pair(1, 2), std::pair(2, 1), std::pair(2, 2)}) {
      const ThreeAxes axes(communicator, stages, tensor_ranks);
      for (const int stage : {0, 1, 2, 3}) {
        SCOPED_TRACE(fmt::format("stage {}, {} x {}", stage, stages, tensor_ranks));
        PipelineShape shape{.mode = fmt::format("engine{}", stage),
                            .tied = false,
                            .optimizer = adamw_of(at::kBFloat16),
                            .width = 2,
                            .sequence = true,
                            .dtype = at::kBFloat16,
                            .device = kDevice};
        PipelineRank resident(axes, shape);
        const TrainedModel expected = moved_to_cpu(trained_model(resident, 3, 2));
        shape.mode += ":offload=host";
        PipelineRank rank(axes, shape);
        expect_part_of(moved_to_cpu(trained_model(rank, 3, 2)), expected);
        const optim::OffloadTraffic moved = rank.strategy->optimizer().offload_traffic();
        EXPECT_EQ(moved.to_host_bytes, 4 * updated_bytes_of(*rank.strategy));
        EXPECT_EQ(moved.to_device_bytes, 3 * updated_bytes_of(*rank.strategy));
        emulated::expect_clean();
      }
    }
  });
}

}  // namespace
}  // namespace zero::testing
