// Optimizer states on a disk, or on the host of ranks on the CPU: the engine and every mode with
// these options have the bits of the same one in memory; checkpoints go from one to the other. A
// fault of one rank is an error on all, and then all need a checkpoint.

#include <fmt/format.h>
#include <sys/resource.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <thread>

#include <tests/support/disk.hpp>
#include <tests/support/error_of.hpp>
#include <tests/support/offload.hpp>
#include <tests/support/pipeline_run.hpp>
#include <tests/support/same_bits.hpp>
#include <tests/support/states.hpp>
#include <tests/support/test_folder.hpp>
#include <zero/io/state_dict.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/optim/offload/offloaded.hpp>
#include <zero/optim/offload/tile_file.hpp>
#include <zero/optim/sgd.hpp>

#include "offload_runs.hpp"

namespace zero::testing {
namespace {

using ::testing::HasSubstr;

const char* const kStages[] = {"engine0", "engine1", "engine2", "engine3"};

ZERO_TESTS_ON_RANKS(Offload, 1, 2, 3, 4);

TEST_P(Offload, EveryStageHasTheBitsOfStatesInMemory) {
  const TestFolder folder;
  on_ranks(GetParam(), [&](dist::Communicator& communicator) {
    for (const at::ScalarType dtype : kDtypes) {
      for (const char* mode : kStages) {
        SCOPED_TRACE(fmt::format("{} {}", mode, c10::toString(dtype)));
        Session resident(communicator, mode, options_of(dtype));
        Session on_disk(communicator, offloaded(mode, folder.path()), options_of(dtype));
        EXPECT_EQ(train(on_disk), train(resident));
        EXPECT_GE(on_disk.trainer().steps() - on_disk.trainer().skipped_steps(), 3);
        EXPECT_TRUE(same_state(whole_state(on_disk), whole_state(resident)));
      }
    }
  });
  EXPECT_TRUE(folder.listing().empty());
}

// Without a device there is one memory.
TEST_P(Offload, ToTheHostChangesNothingOnTheCpu) {
  on_ranks(GetParam(), [&](dist::Communicator& communicator) {
    for (const std::string mode : kStages) {
      SCOPED_TRACE(mode);
      Session resident(communicator, mode, options_of(at::kBFloat16));
      const auto of_resident = train(resident);
      const memory::Snapshot before = memory::snapshot();
      Session on_host(communicator, mode + ":offload=host", options_of(at::kBFloat16));
      EXPECT_EQ(train(on_host), of_resident);
      EXPECT_FALSE(on_host.strategy().optimizer().is_offloaded());
      const train::Costs ours = on_host.strategy().costs(), theirs = resident.strategy().costs();
      EXPECT_EQ(text_of(ours.at_rest), text_of(theirs.at_rest));
      EXPECT_EQ(ours.sent, theirs.sent);
      EXPECT_EQ(states_since(before).optimizer, theirs.at_rest.optimizer);
      EXPECT_TRUE(same_state(whole_state(on_host), whole_state(resident)));
    }
  });
}

TEST_P(Offload, GroupsOfRanksHaveTheBitsOfStatesInMemory) {
  if (GetParam() != 4) return;
  const TestFolder folder;
  on_ranks(4, [&](dist::Communicator& communicator) {
    for (const std::string mode :
         {"hsdp3:shard_size=2", "hsdp1:shard_size=2", "hpz:group_size=2"}) {
      SCOPED_TRACE(mode);
      Session resident(communicator, mode, options_of(at::kBFloat16));
      Session on_disk(communicator, offloaded(mode, folder.path()), options_of(at::kBFloat16));
      EXPECT_EQ(train(on_disk), train(resident));
      EXPECT_TRUE(same_state(whole_state(on_disk), whole_state(resident)));
    }
  });
}

// The parts of a model that a tensor axis cuts, and the stages of a pipeline.
TEST_P(Offload, TensorAndPipelineAxesHaveTheBitsOfStatesInMemory) {
  if (GetParam() != 4) return;
  const TestFolder folder;
  on_ranks(4, [&](dist::Communicator& communicator) {
    for (const auto& [stages, tensor_ranks] : {std::pair(1, 2), std::pair(2, 1), std::pair(2, 2)}) {
      const ThreeAxes axes(communicator, stages, tensor_ranks);
      for (const std::string stage : kStages) {
        SCOPED_TRACE(fmt::format("{}, {} stages, {} tensor ranks", stage, stages, tensor_ranks));
        PipelineShape shape{.mode = stage, .tied = false, .width = 2, .sequence = true};
        PipelineRank resident(axes, shape);
        const TrainedModel expected = trained_model(resident, 3, 2);
        shape.mode = offloaded(stage, folder.path());
        PipelineRank on_disk(axes, shape);
        expect_part_of(trained_model(on_disk, 3, 2), expected);
        EXPECT_GT(on_disk.strategy->optimizer().offload_traffic().written_bytes, 0);
        EXPECT_TRUE(same_state(whole_state(*on_disk.strategy), whole_state(*resident.strategy)));
      }
    }
  });
}

// From memory to the disk and from the disk to memory, at another stage and world size.
TEST_P(Offload, CheckpointsGoFromTheDiskToMemoryAndBack) {
  const TestFolder folder;
  for (const at::ScalarType dtype : kDtypes) {
    for (const bool to_disk : {true, false}) {
      SCOPED_TRACE(fmt::format("{} {}", c10::toString(dtype), to_disk ? "to disk" : "from disk"));
      const auto place = folder / fmt::format("{}{}", c10::toString(dtype), to_disk);
      const auto mode = [&](const char* name, bool on_disk) {
        return on_disk ? offloaded(name, folder.path()) : std::string(name);
      };
      on_ranks(GetParam(), [&](dist::Communicator& communicator) {
        Session saves(communicator, mode("engine3", !to_disk), options_of(dtype));
        train(saves, 0, 2);
        io::save_checkpoint(saves.strategy(), place, note(2, "engine3"));
        const WholeState state = whole_state(saves);
        if (communicator.rank() == 0) keep(place / "state", state);
        communicator.barrier();
      });
      on_ranks(GetParam() % 4 + 1, [&](dist::Communicator& communicator) {
        Session loads(communicator, mode("engine1", to_disk), options_of(dtype));
        Session beside(communicator, mode("engine2", !to_disk), options_of(dtype));
        train(loads, 4, 6);  // has other states already
        for (Session* session : {&loads, &beside}) {
          io::load_checkpoint(session->strategy(), place);
          EXPECT_TRUE(same_state(whole_state(*session), kept(place / "state")));
        }
        EXPECT_EQ(loads.step(2).loss, beside.step(2).loss);
        loads.step(4);
        beside.step(4);
        WholeState a = whole_state(loads), b = whole_state(beside);
        EXPECT_TRUE(same_state(a, b));
      });
    }
  }
}

TEST(OffloadEngine, SavesBehindAndGoesOn) {
  const TestFolder folder;
  on_all_stages(2, [&](dist::Communicator& communicator, int stage) {
    OffloadRun run(communicator, offloaded(stage, folder.path()));
    OffloadRun resident(communicator, in_memory(stage));
    run.steps(0, 2);
    run.engine.save(folder / "behind", {.behind = true});
    run.steps(2, 5);
    run.engine.finish_save();
    EXPECT_TRUE(resident.engine.load(folder / "behind"));
    resident.steps(2, 5);
    EXPECT_TRUE(
        same_state(whole_state(run.engine.strategy()), whole_state(resident.engine.strategy())));
  });
}

TEST(OffloadEngine, HoldsTwoTilesOfOptimizerStates) {
  const TestFolder folder;
  on_all_stages(2, [&](dist::Communicator& communicator, int stage) {
    const memory::Snapshot before = memory::snapshot();
    OffloadRun run(communicator, offloaded(stage, folder.path()));
    run.steps(0, 2);
    EXPECT_EQ(states_since(before).optimizer, 2 * (kTile + optim::TileFile::kAlignment));
    EXPECT_EQ(run.engine.strategy().costs().at_rest.optimizer, states_since(before).optimizer);
  });
}

// A limit of the process, because a cgroup takes root. It counts what is asked for, not what is
// touched, with 8 MiB for the stack of each of the disk's threads. It does not count memory that
// ranks share.
TEST(OffloadEngine, TrainsInMemoryThatStatesDoNotFitInto) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "AddressSanitizer asks for more memory than it uses";
#endif
  const TestFolder folder;
  const auto exits_of = [](const EngineConfig& config) {
    return ranks_ended({}, [config](dist::Communicator& communicator) {
      std::ifstream status("/proc/self/status");
      std::int64_t kib = 0;
      for (std::string word; status >> word && word != "VmData:";) {
      }
      status >> kib;
      const std::int64_t parameters = 2 * 3000 * 3000;
      // Parameters and gradients have 8 bytes, the moments 8 more.
      const rlimit limit{static_cast<rlim_t>(kib * 1024 + 14 * parameters), RLIM_INFINITY};
      ASSERT_EQ(::setrlimit(RLIMIT_DATA, &limit), 0);
      EngineRun run(communicator, config, optim::adamw(), at::kFloat, {3000, 3000, 3000});
      run.steps(0, 2);
    });
  };
  ::setenv("ZERO_TRANSPORT", "tcp", /*overwrite=*/1);
  EngineConfig on_disk = offloaded(0, folder.path());
  on_disk.overlap.offload_tile_bytes = 1 << 20;
  for (const dist::RankExit& exit : exits_of(on_disk)) EXPECT_TRUE(exit.ok()) << exit.output;
  expect_errors(exits_of(in_memory(0)), HasSubstr("memory"));
  ::unsetenv("ZERO_TRANSPORT");
}

// Whatever reads weights or updates them.
void expect_all_refuse(OffloadRun& run, const std::filesystem::path& place,
                       const std::vector<std::string>& what) {
  expect_error([&] { run.step(3); }, what);
  expect_error([&] { run.weights(); }, what);
  expect_error([&] { io::shards_of_state_dict(run.engine.strategy()); }, what);
  expect_error([&] { io::load_weights(run.engine.strategy(), safetensors::NamedTensors{}); }, what);
  expect_error([&] { run.engine.save(place); }, what);
  EXPECT_FALSE(std::filesystem::exists(place));
}

// Rank 1's file loses some bytes, or its end: nobody can go on but from the checkpoint, in the same
// program.
TEST(OffloadFaults, ABadByteOrAShortReadOnOneRankIsAnErrorOnAllAndTheCheckpointLoads) {
  for (const bool is_short : {false, true}) {
    const TestFolder folder;
    on_all_stages(3, [&](dist::Communicator& communicator, int stage) {
      OffloadRun undisturbed(communicator, in_memory(stage));
      OffloadRun run(communicator, offloaded(stage, folder.path()));
      run.steps(0, 2);
      run.engine.save(folder / "run");
      run.steps(2, 3);
      if (run.rank == 1) {
        is_short ? cut_offloaded_file(folder.path(), kTile + 512)
                 : spoil_offloaded_file(folder.path(), kTile + 5);
      }
      const std::string wrong = is_short ? "tile 1 could not be read: 512 of 4096 bytes were there"
                                         : "tile 1 has other bytes";
      const std::vector<std::string> what = {"the update failed, load a checkpoint: rank 1",
                                             folder.path().string(), wrong};
      expect_error([&] { run.step(3); }, what);
      expect_all_refuse(run, folder / "half", what);
      EXPECT_TRUE(run.engine.load(folder / "run"));
      EXPECT_EQ(run.engine.steps(), 2);
      run.steps(2, 5);
      undisturbed.steps(0, 5);
      EXPECT_TRUE(same_state(whole_state(run.engine.strategy()),
                             whole_state(undisturbed.engine.strategy())));
    });
  }
}

TEST(OffloadFaults, ALoadThatFailsOnOneRankIsAnErrorOnAllUntilOneSucceeds) {
  const TestFolder folder;
  on_all_stages(2, [&](dist::Communicator& communicator, int stage) {
    OffloadRun undisturbed(communicator, in_memory(stage));
    OffloadRun run(communicator, offloaded(stage, folder.path()));
    run.steps(0, 2);
    run.engine.save(folder / "run");
    run.step(2);
    const std::vector<std::string> what = {"the model is partly loaded, load another: rank 1",
                                           "No space left"};
    {
      const Disk full([&](const Transfer& transfer) -> ssize_t {
        if (run.rank == 0 || !transfer.writes) return transfer.as_asked();
        errno = ENOSPC;
        return -1;
      });
      expect_error([&] { run.engine.load(folder / "run"); }, what);
    }
    expect_all_refuse(run, folder / "half", what);
    EXPECT_TRUE(run.engine.load(folder / "run"));
    run.steps(2, 4);
    undisturbed.steps(0, 4);
    EXPECT_TRUE(
        same_state(whole_state(run.engine.strategy()), whole_state(undisturbed.engine.strategy())));
  });
}

TEST(OffloadFaults, AFolderThatARankDoesNotHaveIsAnErrorOnAll) {
  const TestFolder folder;
  std::filesystem::create_directory(folder / "states");
  on_ranks(2, [&](dist::Communicator& communicator) {
    const auto refused = [&](const std::filesystem::path& place,
                             const std::vector<std::string>& parts) {
      expect_error([&] { OffloadRun(communicator, offloaded(3, place)); }, parts);
    };
    refused(folder / "missing", {"cannot be kept in " + (folder / "missing").string()});
    refused(folder / (communicator.rank() == 0 ? "missing" : "states"),
            {"the options of the mode", "rank 0 has", "missing", "rank 1 has", "states"});
    // Ranks are processes: "states" is another folder for rank 1, as on another host.
    std::filesystem::current_path(communicator.rank() == 0 ? folder.path() : folder / "states");
    refused("states", {"rank 1 has", "cannot be kept in states: No such file or directory"});
  });
}

TEST(OffloadFaults, AFullDiskOfOneRankIsAnErrorOnAllAndTheCheckpointLoads) {
  const TestFolder folder;
  on_all_stages(2, [&](dist::Communicator& communicator, int stage) {
    OffloadRun saves(communicator, in_memory(stage));
    saves.steps(0, 2);
    saves.engine.save(folder / "run");
    OffloadRun run(communicator, offloaded(stage, folder.path()));
    std::optional<FullDisk> full;
    if (run.rank == 1) full.emplace(kTile);
    expect_error([&] { run.step(0); }, {"the update failed", "rank 1", "bytes are needed there"});
    expect_error([&] { run.step(0); }, {"load a checkpoint"});
    full.reset();
    EXPECT_TRUE(run.engine.load(folder / "run"));
    run.steps(2, 4);
    saves.steps(2, 4);
    EXPECT_TRUE(same_bits(run.weights(), saves.weights()));
  });
}

// AdamW that does something in one tile of one step.
optim::OptimizerFactory adamw_with(const std::function<void()>& before_tile) {
  class Hooked final : public optim::Optimizer {
   public:
    Hooked(std::unique_ptr<Optimizer> inner, std::function<void()> hook)
        : inner_(std::move(inner)), hook_(std::move(hook)) {}
    void step() override {
      hook_();
      inner_->step();
    }
    void replace(const std::function<at::Tensor(const at::Tensor&)>& with) override {
      inner_->replace(with);
    }
    std::map<std::string, at::Tensor> state(const at::Tensor& p) const override {
      return inner_->state(p);
    }
    std::int64_t steps(const at::Tensor& p) const override { return inner_->steps(p); }
    Settings settings() const override { return inner_->settings(); }
    void load_state(const at::Tensor& p, std::int64_t steps,
                    const std::map<std::string, at::Tensor>& states) override {
      inner_->load_state(p, steps, states);
    }
    void set_learning_rate(double rate) override { inner_->set_learning_rate(rate); }

   private:
    std::unique_ptr<Optimizer> inner_;
    std::function<void()> hook_;
  };
  return [before_tile](const std::vector<at::Tensor>& parameters) {
    return std::make_unique<Hooked>(optim::adamw()(parameters), before_tile);
  };
}

// What all ranks do after a checkpoint of two steps; in the middle of it rank 1 calls `die`.
struct Phase {
  const char* name;
  std::function<void(OffloadRun& run, const std::filesystem::path& checkpoint,
                     const std::function<void()>& die)>
      ends;
};

std::function<void()> before_tile;  // of this rank

// In the `number`th tile of a step.
Phase in_update(int number) {
  return {"an update", [number](OffloadRun& run, const auto&, const auto& die) {
            before_tile = [&die, left = number]() mutable {
              if (left-- == 0) die();
            };
            run.step(2);
          }};
}

// In the `number`th block that is read or written by `work`.
void with_disk(bool writes, int number, const std::function<void()>& die,
               const std::function<void()>& work) {
  std::atomic<int> left = number;
  const Disk disk([&](const Transfer& transfer) {
    if (transfer.writes == writes && left-- == 0) die();
    return transfer.as_asked();
  });
  work();
}

Phase in_read(const char* name, int number) {
  return {name, [number](OffloadRun& run, const auto&, const auto& die) {
            with_disk(/*writes=*/false, number, die, [&] { run.step(2); });
          }};
}

Phase in_write(int number) {
  return {"a write in a step", [number](OffloadRun& run, const auto&, const auto& die) {
            with_disk(/*writes=*/true, number, die, [&] { run.step(2); });
          }};
}

std::vector<Phase> all_phases() {
  return {{"between forward and backward",
           [](OffloadRun& run, const auto&, const auto& die) {
             const at::Tensor loss = run.forward(2);
             die();
             run.engine.backward(loss);
             run.engine.step();
           }},
          {"backward",
           [](OffloadRun& run, const auto&, const auto& die) {
             run.engine.strategy().passes().observe_gradients(
                 [&die](std::size_t, const at::Tensor&) { die(); });
             run.step(2);
           }},
          in_update(0),
          in_update(1),
          in_update(3),
          in_read("a read in a step", 2),
          in_write(2),
          {"a save of a third step",
           [](OffloadRun& run, const auto& checkpoint, const auto& die) {
             run.step(2);
             with_disk(/*writes=*/false, 2, die, [&] { run.engine.save(checkpoint); });
           }},
          {"a load", [](OffloadRun& run, const auto& checkpoint, const auto& die) {
             run.step(2);
             with_disk(/*writes=*/true, 1, die, [&] { run.engine.load(checkpoint); });
           }}};
}

TEST(OffloadFaults, ARankThatIsKilledInAnyPhaseLeavesNothingAndTheCheckpointLoads) {
  for (const Phase& phase : all_phases()) {
    SCOPED_TRACE(phase.name);
    const TestFolder folder;
    const EngineConfig config = offloaded(1, folder.path());
    const auto exits = ranks_ended({.timeout = std::chrono::seconds(5)}, [&](auto& communicator) {
      OffloadRun run(communicator, config, adamw_with([] {
                       if (before_tile) before_tile();
                     }));
      run.steps(0, 2);
      run.engine.save(folder / "run");
      phase.ends(run, folder / "run", [&run] {
        if (run.rank == 1) std::raise(SIGKILL);
      });
    });
    EXPECT_THAT(exits[0].output, HasSubstr("rank 1"));
    EXPECT_EQ(exits[0].exit_code, 1);
    EXPECT_EQ(exits[1].signal, SIGKILL);
    on_ranks(2, [&](dist::Communicator& communicator) {
      OffloadRun run(communicator, config), undisturbed(communicator, {});
      EXPECT_TRUE(run.engine.load(folder / "run"));
      EXPECT_EQ(run.engine.steps(), 2);
      run.steps(2, 4);
      undisturbed.steps(0, 4);
      EXPECT_TRUE(same_bits(run.weights(), undisturbed.weights()));
    });
    for (const std::string& name : folder.listing())
      EXPECT_THAT(name, ::testing::StartsWith("run"));
  }
}

// Each block of each rank is early or late by chance.
TEST(OffloadEngine, ASlowDiskChangesNoBit) {
  const TestFolder folder;
  on_all_stages(2, [&](dist::Communicator& communicator, int stage) {
    OffloadRun run(communicator, offloaded(stage, folder.path()));
    OffloadRun resident(communicator, in_memory(stage));
    std::atomic<unsigned> blocks = 0;
    const Disk disk([&](const Transfer& transfer) {
      const auto waits = [&] {
        const unsigned drawn = (++blocks + static_cast<unsigned>(run.rank)) * 2654435761U >> 20;
        std::this_thread::sleep_for(std::chrono::microseconds(drawn % 8 == 0 ? drawn : 0));
      };
      waits();
      const ssize_t done = transfer.as_asked();
      waits();
      return done;
    });
    run.steps(0, 5);
    resident.steps(0, 5);
    EXPECT_TRUE(
        same_state(whole_state(run.engine.strategy()), whole_state(resident.engine.strategy())));
  });
}

// An error of the program in the middle of an update, on one rank.
TEST(OffloadFaults, AnErrorBetweenTwoTilesOfOneRankIsOneOfAll) {
  const TestFolder folder;
  on_ranks(2, [&](dist::Communicator& communicator) {
    int tiles_left = -1;
    OffloadRun run(communicator, offloaded(2, folder.path()), adamw_with([&] {
                     if (tiles_left-- == 0) throw Error("no more");
                   }));
    run.step(0);
    if (run.rank == 0) tiles_left = 2;
    expect_error([&] { run.step(1); }, {"the update failed, load a checkpoint: rank 0: no more"});
    expect_error([&] { run.step(1); }, {"load a checkpoint"});
  });
}

TEST(OffloadFaults, OtherOptimizersAreRefusedOnAllRanks) {
  const TestFolder folder;
  on_ranks(2, [&](dist::Communicator& communicator) {
    expect_error([&] { OffloadRun(communicator, offloaded(3, folder.path()), optim::sgd()); },
                 {"the states of SGD cannot be offloaded", "optim::adamw()"});
  });
}

TEST(OffloadEngine, TwoRunsShareAFolderThatIsRemoved) {
  const TestFolder folder;
  const auto place = folder / "states";
  std::filesystem::create_directory(place);
  on_ranks(2, [&](dist::Communicator& communicator) {
    const EngineConfig config = offloaded(3, place);
    OffloadRun resident(communicator, in_memory(3));
    OffloadRun one(communicator, config), other(communicator, config);
    for (int number = 0; number < 4; ++number) {
      one.step(number);
      other.step(3 - number);
      resident.step(number);
      communicator.barrier();
      if (one.rank == 0) std::filesystem::remove(place);  // throws unless it is empty
    }
    EXPECT_TRUE(same_bits(one.weights(), resident.weights()));
    EXPECT_FALSE(same_bits(other.weights(), resident.weights()));
  });
  EXPECT_TRUE(folder.listing().empty());
}

}  // namespace
}  // namespace zero::testing
