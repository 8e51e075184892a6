// Parameters in a file, for a module and functions of it: the engine at stage 3 has the bits of the
// same one in memory and of stage 0. Whatever reads or writes weights finds them. A disk that fails
// on one rank is an error on all, until a checkpoint is loaded.

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/randn.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <torch/nn/modules/linear.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <10_offload/tile_file.hpp>
#include <tests/support/disk.hpp>
#include <tests/support/error_of.hpp>
#include <tests/support/offload.hpp>
#include <tests/support/ranks.hpp>
#include <tests/support/same_bits.hpp>
#include <tests/support/test_folder.hpp>
#include <tests/support/whole_state.hpp>
#include <tests/support/whole_weights.hpp>
#include <zero/engine.hpp>
#include <zero/io/state_dict.hpp>
#include <zero/optim/adamw.hpp>
#include <zero/optim/master_weights.hpp>

namespace zero::testing {
namespace {

using ::testing::HasSubstr;

// Of odd sizes, with a frozen layer and a parameter of the root.
struct InFileNet : torch::nn::Module {
  explicit InFileNet(at::ScalarType dtype) {
    at::manual_seed(5);
    for (const auto& [inputs, outputs] : {std::pair(13, 61), {61, 67}, {67, 61}, {61, 3}}) {
      layers.emplace_back(inputs, outputs);
      register_module(fmt::format("layer{}", layers.size()), layers.back());
    }
    scale = register_parameter("scale", at::randn({3}));
    layers[1]->weight.set_requires_grad(false);
    to(dtype);
  }
  at::Tensor predict(at::Tensor x) {
    for (torch::nn::Linear& layer : layers) x = layer->forward(x).tanh();
    return x * scale;
  }
  std::vector<torch::nn::Linear> layers;
  at::Tensor scale;
};

// One rank. A step has two micro-batches and is clipped.
struct InFileRun {
  InFileRun(dist::Communicator& communicator, const EngineConfig& config,
            at::ScalarType dtype = at::kFloat)
      : rank(communicator.rank()),
        net(dtype),
        engine(net, communicator, optim::with_master_weights(optim::adamw()), of_two(config),
               nn::default_units(/*bytes=*/1)) {}
  static EngineConfig of_two(EngineConfig config) {
    config.accumulation_steps = 2;
    config.clip_norm = 0.1;
    return config;
  }
  at::Tensor inputs(int number) const {
    at::Generator generator = at::detail::createCPUGenerator(100 * number + rank);
    return at::randn({4, 13}, generator).to(net.scale.scalar_type());
  }
  at::Tensor forward(int number) {
    return engine.forward([&] { return net.predict(inputs(number)).square().mean(); });
  }
  void step(int number) {
    for (const int micro_batch : {2 * number, 2 * number + 1}) {
      engine.backward(forward(micro_batch));
      engine.step();
    }
  }
  void steps(int first, int last) {
    for (int number = first; number < last; ++number) step(number);
  }
  at::Tensor evaluated(int number) {
    const at::NoGradGuard no_grad;
    return engine.evaluate([&] { return net.predict(inputs(number)); });
  }
  WholeState state() { return whole_state(engine.strategy()); }
  std::vector<at::Tensor> weights() { return whole_weights(engine.strategy()); }

  int rank;
  InFileNet net;
  Engine engine;
};

EngineConfig parameters_in(const std::filesystem::path& folder) {
  return {.offload_parameters = folder.string()};
}

ZERO_TESTS_ON_RANKS(ParametersInFile, 1, 2, 3);

// Also with several buckets in a unit, other lookaheads, small units whole in memory, and optimizer
// states in a file as well, whose tiles have states of several slots.
TEST_P(ParametersInFile, HaveTheBitsOfThoseInMemoryAndOfStage0) {
  const TestFolder folder;
  on_ranks(GetParam(), [&](dist::Communicator& communicator) {
    EngineConfig small = parameters_in(folder.path()), on_demand = small, some = small,
                 both = small;
    small.bucket_bytes = 1 << 10;
    small.lookahead = 2;
    on_demand.lookahead = 0;
    some.whole_below = 300;
    both.offload = folder.path().string();
    both.offload_tile_bytes = optim::TileFile::kAlignment;
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      InFileRun resident(communicator, {}, dtype), stage_0(communicator, {.stage = 0}, dtype);
      for (InFileRun* run : {&resident, &stage_0}) run->steps(0, 4);
      const WholeState expected = resident.state();
      EXPECT_TRUE(same_bits(stage_0.weights(), resident.weights()));
      for (const EngineConfig& config :
           {parameters_in(folder.path()), small, on_demand, some, both}) {
        InFileRun run(communicator, config, dtype);
        run.steps(0, 4);
        EXPECT_EQ(run.engine.gradient_norm(), resident.engine.gradient_norm());
        EXPECT_TRUE(same_state(run.state(), expected));
      }
    }
  });
  EXPECT_TRUE(folder.listing().empty());  // files have no names
}

// From the file to memory and from memory to the file, on another number of ranks.
TEST_P(ParametersInFile, CheckpointsGoToMemoryAndBack) {
  const TestFolder folder;
  for (const bool to_file : {true, false}) {
    SCOPED_TRACE(to_file ? "to the file" : "from the file");
    const auto place = folder / fmt::format("{}", to_file);
    const auto config = [&](bool in_file) {
      return in_file ? parameters_in(folder.path()) : EngineConfig{};
    };
    on_ranks(GetParam(), [&](dist::Communicator& communicator) {
      InFileRun run(communicator, config(!to_file), at::kBFloat16);
      run.steps(0, 2);
      run.engine.save(place, {.behind = true});
      const WholeState state = run.state();
      run.step(7);  // while it is written
      run.engine.finish_save();
      if (communicator.rank() == 0) keep(place / "state", state);
      communicator.barrier();
    });
    on_ranks(GetParam() % 3 + 1, [&](dist::Communicator& communicator) {
      InFileRun loads(communicator, config(to_file), at::kBFloat16);
      InFileRun beside(communicator, config(!to_file), at::kBFloat16);
      loads.step(9);  // has other states already
      for (InFileRun* run : {&loads, &beside}) {
        EXPECT_TRUE(run->engine.load(place));
        EXPECT_TRUE(same_state(run->state(), kept(place / "state")));
        run->steps(2, 4);
        run->engine.save(place / fmt::format("{}", run == &loads));
      }
      EXPECT_TRUE(same_state(loads.state(), beside.state()));
    });
  }
}

// What the program writes into weights, reads of them, evaluates with them and loads into them.
TEST_P(ParametersInFile, TheProgramFindsWhatItWrites) {
  const TestFolder folder;
  on_ranks(GetParam(), [&](dist::Communicator& communicator) {
    InFileRun resident(communicator, {}), run(communicator, parameters_in(folder.path()));
    for (InFileRun* each : {&resident, &run}) {
      train::Strategy& strategy = each->engine.strategy();
      each->step(0);
      for (std::size_t unit = 0; unit < strategy.list().units.size(); ++unit) {
        const at::NoGradGuard no_grad;
        const train::UnshardedParameters whole(strategy, unit);
        for (const std::size_t i : strategy.list().units[unit].parameters) {
          strategy.list().parameters[i].tensor.mul_(0.75);
        }
      }
      each->step(1);
    }
    EXPECT_TRUE(same_state(run.state(), resident.state()));
    EXPECT_TRUE(at::equal(run.evaluated(7), resident.evaluated(7)));
    auto dict = io::state_dict(resident.engine.strategy(), io::WholeOn::kAllRanks);
    for (auto& [name, tensor] : dict) tensor.neg_();
    for (InFileRun* each : {&resident, &run}) {
      each->engine.load_weights(dict);
      each->step(2);
    }
    EXPECT_TRUE(same_state(run.state(), resident.state()));
    run.engine.release();
    resident.engine.release();
    EXPECT_TRUE(same_bits(run.net.parameters(), resident.net.parameters()));
  });
}

// Of shards in a file too; states on a disk say that they cannot.
TEST_P(ParametersInFile, MastersHaveLoadedValuesBeforeTheyAreRounded) {
  const TestFolder folder;
  on_ranks(GetParam(), [&](dist::Communicator& communicator) {
    InFileRun resident(communicator, {}, at::kBFloat16);
    InFileRun run(communicator, parameters_in(folder.path()), at::kBFloat16);
    auto dict = io::state_dict(resident.engine.strategy(), io::WholeOn::kAllRanks);
    for (auto& [name, tensor] : dict) tensor = tensor.to(at::kFloat) * 1.001;
    for (InFileRun* each : {&resident, &run}) {
      each->engine.load_weights(dict);
      each->steps(0, 2);
    }
    EXPECT_TRUE(same_state(run.state(), resident.state()));
    InFileRun on_disk(communicator, {.offload = folder.path().string()}, at::kBFloat16);
    expect_error([&] { on_disk.engine.load_weights(dict); }, {"master weights on a disk"});
  });
}

// ---- what fails

// Whatever reads weights or updates them.
void expect_all_refuse(InFileRun& run, const std::filesystem::path& place,
                       const std::vector<std::string>& what) {
  expect_error([&] { run.forward(3); }, what);
  expect_error([&] { run.evaluated(3); }, what);
  expect_error([&] { run.weights(); }, what);
  expect_error([&] { run.engine.load_weights(safetensors::NamedTensors{}); }, what);
  expect_error([&] { run.engine.save(place); }, what);
  EXPECT_FALSE(std::filesystem::exists(place));
}

// Each read of a step in turn, then each write.
TEST(ParametersInFileFaults, ADiskThatFailsOnOneRankIsAnErrorOnAllUntilALoad) {
  const TestFolder folder;
  on_ranks(3, [&](dist::Communicator& communicator) {
    InFileRun resident(communicator, {}), run(communicator, parameters_in(folder.path()));
    resident.steps(0, 3);
    const WholeState expected = resident.state();
    run.steps(0, 2);
    run.engine.save(folder / "run");
    int in_passes = 0, in_updates = 0;
    for (const bool writes : {false, true}) {
      for (int number = 0; number < 60; ++number) {
        SCOPED_TRACE(fmt::format("{} {}", writes ? "write" : "read", number));
        std::string message;
        {
          std::atomic<int> left = number;
          const Disk disk([&](const Transfer& transfer) -> ssize_t {
            const bool fails = run.rank == 1 && transfer.writes == writes && left-- == 0;
            return fails ? static_cast<ssize_t>(transfer.bytes / 2) : transfer.as_asked();
          });
          message = error_of([&] { run.step(2); });
        }
        if (message.empty()) break;
        const bool in_update = message.find("the update failed") != std::string::npos;
        ++(in_update ? in_updates : in_passes);
        EXPECT_THAT(message, HasSubstr("load a checkpoint: rank 1: parameters in " +
                                       folder.path().string()));
        EXPECT_THAT(message, HasSubstr(writes ? "could not be written" : "could not be read"));
        run.engine.give_up_step();
        if (number % 5 == 0) expect_all_refuse(run, folder / "half", {message});
        EXPECT_TRUE(run.engine.load(folder / "run"));
        run.step(2);
        EXPECT_TRUE(same_state(run.state(), expected));
        EXPECT_TRUE(run.engine.load(folder / "run"));
      }
    }
    EXPECT_GE(in_passes, 10);
    EXPECT_GE(in_updates, 5);
  });
}

// Not lost silently: a scope ends without an error, the next use of weights has it. With a bucket
// for each parameter the first is written when the second comes.
TEST(ParametersInFileFaults, AWriteOfTheProgramThatFailsIsAnErrorOfTheNextUse) {
  const TestFolder folder;
  on_ranks(2, [&](dist::Communicator& communicator) {
    EngineConfig config = parameters_in(folder.path());
    config.bucket_bytes = 1;
    InFileRun run(communicator, config);
    run.steps(0, 2);
    run.engine.save(folder / "run");
    for (const bool saves : {false, true}) {
      {
        const Disk disk([&](const Transfer& transfer) -> ssize_t {
          if (!transfer.writes || run.rank == 0) return transfer.as_asked();
          errno = ENOSPC;
          return -1;
        });
        const at::NoGradGuard no_grad;
        train::Strategy& strategy = run.engine.strategy();
        const train::UnshardedParameters whole(strategy, /*unit=*/1);
        strategy.list().parameters[strategy.list().units[1].parameters[0]].tensor.mul_(2);
      }
      expect_error(
          [&] { saves ? static_cast<void>(run.engine.save(folder / "half")) : run.step(2); },
          {"rank 1: parameters in", "could not be written: No space left"});
      if (!saves) run.engine.give_up_step();
      const std::string first = error_of([&] { run.engine.load(folder / "run"); });
      EXPECT_EQ(!first.empty(), saves);
      EXPECT_TRUE(run.engine.load(folder / "run"));
    }
  });
}

TEST(ParametersInFileFaults, AFullDiskAndAFolderThatIsMissingAreErrorsOfAllRanks) {
  const TestFolder folder;
  on_ranks(3, [&](dist::Communicator& communicator) {
    const bool is_it = communicator.rank() == 1;
    {
      std::optional<FullDisk> full;
      if (is_it) full.emplace(4096);
      expect_error([&] { InFileRun(communicator, parameters_in(folder.path())); },
                   {"parameters cannot be offloaded: rank 1: parameters in", "are needed there"});
    }
    const std::string mine = fmt::format("{}", communicator.rank());
    std::filesystem::create_directories(folder / mine);
    if (!is_it) std::filesystem::create_directories(folder / mine / "states");
    std::filesystem::current_path(folder / mine);
    expect_error([&] { InFileRun(communicator, parameters_in("states")); },
                 {"rank 1 has", "parameters cannot be kept in states: No such file"});
  });
}

TEST(ParametersInFileFaults, WhatCannotBeInFilesIsRefused) {
  const TestFolder folder;
  on_ranks(2, [&](dist::Communicator& communicator) {
    for (const int stage : {0, 1, 2}) {
      EngineConfig config = parameters_in(folder.path());
      config.stage = stage;
      expect_error([&] { InFileRun(communicator, config); },
                   {"offload_parameters needs stage 3, a model on the CPU"});
    }
    const dist::Mesh mesh(communicator, {{"data", 1}, {"tensor", 2}});
    InFileNet net(at::kFloat);
    expect_error([&] { Engine(net, mesh, optim::adamw(), parameters_in(folder.path())); },
                 {"offload_parameters needs", "a mesh of the axis \"data\" alone"});
  });
}

// A shard that nobody has brought cannot be read by mistake.
TEST(ParametersInFileFaults, AShardInItsFileIsNotRead) {
  const TestFolder folder;
  on_ranks(2, [&](dist::Communicator& communicator) {
    InFileRun run(communicator, parameters_in(folder.path()));
    train::Strategy& strategy = run.engine.strategy();
    const auto shard_of = [&](std::size_t unit) {
      const std::size_t i = strategy.list().units[unit].parameters[0];
      strategy.bring(i);
      return strategy.placement(i).kept.tensor;
    };
    const at::Tensor first = shard_of(1), sum = first.sum();
    shard_of(3).sum();
    try {
      first.sum();
      ADD_FAILURE() << "it was read";
    } catch (const c10::Error& error) {
      EXPECT_THAT(error.msg(), HasSubstr("is in a file (offload_parameters)"));
    }
    EXPECT_TRUE(at::equal(shard_of(1).sum(), sum));
  });
}

}  // namespace
}  // namespace zero::testing
