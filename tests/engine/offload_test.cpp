// Optimizer states on a disk, or on the host of ranks on the CPU: the engine and every mode with
// these options have the bits of the same one in memory; checkpoints go from one to the other. A
// fault of one rank is an error on all, and then all need a checkpoint.

#include <fmt/format.h>

#include <cerrno>
#include <cmath>

#include <10_offload/tile_file.hpp>
#include <tests/support/disk.hpp>
#include <tests/support/engine_run.hpp>
#include <tests/support/error_of.hpp>
#include <tests/support/hooked_optimizer.hpp>
#include <tests/support/offload.hpp>
#include <tests/support/pipeline_run.hpp>
#include <tests/support/session.hpp>
#include <tests/support/states.hpp>
#include <tests/support/test_folder.hpp>
#include <tests/support/two_bytes.hpp>
#include <tests/support/whole_state.hpp>
#include <zero/io/state_dict.hpp>
#include <zero/memory/accounting.hpp>

namespace zero::testing {
namespace {

using ::testing::HasSubstr;

const char* const kStages[] = {"engine0", "engine1", "engine2", "engine3"};

constexpr std::int64_t kTile = 4096;  // the smallest: many tiles, even of a small model

std::string offloaded(const std::string& mode, const std::filesystem::path& folder) {
  return fmt::format("{}:offload={}:offload_tile_mib={}", mode, folder.string(),
                     static_cast<double>(kTile) / (1 << 20));
}

// A model of several tiles, in memory or offloaded to a folder.
struct OffloadRun : EngineRun {
  OffloadRun(dist::Communicator& communicator, const EngineConfig& config,
             const optim::OptimizerFactory& optimizer = optim::adamw())
      : EngineRun(communicator, config, optimizer, at::kFloat, {61, 61}) {}
};

EngineConfig in_memory(int stage) { return {.stage = stage}; }

EngineConfig offloaded(int stage, const std::filesystem::path& folder) {
  EngineConfig config = in_memory(stage);
  config.offload = folder.string();
  config.offload_tile_bytes = kTile;
  return config;
}

// Steps of one and two micro-batches, clipped; in one of them a gradient is infinite on one rank.
std::vector<double> train(Session& session, int from = 0, int to = 6) {
  std::vector<double> seen;
  for (int step = from; step < to; ++step) {
    const bool spoils = step == 3 && session.communicator().rank() == 0;
    session.strategy().passes().observe_gradients([&](std::size_t i, const at::Tensor& gradient) {
      if (spoils && i == 1) gradient.detach().view({-1})[0].fill_(INFINITY);
    });
    std::vector<data::Batch> batches = {session.batch(2 * step)};
    if (step % 2 == 1) batches.push_back(session.batch(2 * step + 1));
    const tools::StepResult result = session.trainer().step(batches);
    EXPECT_TRUE(result.skipped || step != 3);
    seen.insert(seen.end(),
                {result.loss, result.loss_scale, result.gradient_norm, result.skipped ? 1.0 : 0.0});
  }
  session.strategy().passes().observe_gradients({});
  return seen;
}

SessionOptions options_of(at::ScalarType dtype) {
  SessionOptions options = dtype == at::kFloat ? checkpoint_options() : mixed(dtype);
  options.model.width = 41;  // several tiles on each rank
  options.trainer.clip_norm = 0.3;
  options.trainer.on_nonfinite_gradient = train::OnNonfiniteGradient::kSkip;
  return options;
}

constexpr at::ScalarType kDtypes[] = {at::kFloat, at::kBFloat16, at::kHalf};

ZERO_TESTS_ON_RANKS(Offload, 1, 2, 3, 4);

// On a disk; and in the host's memory, which without a device is the one that there is.
TEST_P(Offload, EveryModeHasTheBitsOfStatesInMemory) {
  const TestFolder folder;
  std::vector<std::string> modes(std::begin(kStages), std::end(kStages));
  if (GetParam() == 4) {
    modes.insert(modes.end(), {"hsdp3:shard_size=2", "hsdp1:shard_size=2", "hpz:group_size=2"});
  }
  on_ranks(GetParam(), [&](dist::Communicator& communicator) {
    for (const at::ScalarType dtype : kDtypes) {
      for (const std::string& mode : modes) {
        SCOPED_TRACE(fmt::format("{} {}", mode, c10::toString(dtype)));
        Session resident(communicator, mode, options_of(dtype));
        Session on_disk(communicator, offloaded(mode, folder.path()), options_of(dtype));
        Session on_host(communicator, mode + ":offload=host", options_of(dtype));
        const std::vector<double> expected = train(resident);
        for (Session* session : {&on_disk, &on_host}) {
          EXPECT_EQ(train(*session), expected);
          EXPECT_GE(session->trainer().steps() - session->trainer().skipped_steps(), 3);
          EXPECT_TRUE(same_state(whole_state(*session), whole_state(resident)));
        }
        EXPECT_TRUE(on_disk.strategy().optimizer().is_offloaded());
        EXPECT_FALSE(on_host.strategy().optimizer().is_offloaded());
        const auto costs = [](Session& session) { return session.strategy().costs(); };
        EXPECT_EQ(text_of(costs(on_host).at_rest), text_of(costs(resident).at_rest));
        EXPECT_EQ(costs(on_host).sent, costs(resident).sent);
        EXPECT_EQ(costs(on_disk).at_rest.optimizer, 2 * (kTile + optim::TileFile::kAlignment));
      }
    }
  });
  EXPECT_TRUE(folder.listing().empty());
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

// Whatever reads weights or updates them.
void expect_all_refuse(OffloadRun& run, const std::filesystem::path& place,
                       const std::vector<std::string>& what) {
  expect_error([&] { run.step(3); }, what);
  expect_error([&] { run.weights(); }, what);
  expect_error([&] { io::load_weights(run.engine.strategy(), safetensors::NamedTensors{}); }, what);
  expect_error([&] { run.engine.save(place); }, what);
  EXPECT_FALSE(std::filesystem::exists(place));
}

// What happens to rank 1, in which call, and what all ranks then say. `does` is the call.
struct Fault {
  const char* name;
  bool in_load;
  int steps;  // that it has made
  std::function<void(const std::filesystem::path& folder, const std::function<void()>& does)>
      happens;
  std::string says;
};

bool update_fails = false;  // of this rank, in its second tile

std::vector<Fault> all_faults() {
  const auto spoiled = [](const auto& folder, const auto& does) {
    spoil_offloaded_file(folder, kTile + 5);
    does();
  };
  const auto cut = [](const auto& folder, const auto& does) {
    cut_offloaded_file(folder, kTile + 512);
    does();
  };
  const auto no_room = [](const auto&, const auto& does) {
    const FullDisk full(kTile);
    does();
  };
  const auto full = [](const auto&, const auto& does) {
    const Disk disk([](const Transfer& transfer) -> ssize_t {
      if (!transfer.writes) return transfer.as_asked();
      errno = ENOSPC;
      return -1;
    });
    does();
  };
  const auto program = [](const auto&, const auto& does) {
    update_fails = true;
    does();
  };
  return {{"a bad byte", false, 3, spoiled, "tile 1 has other bytes"},
          {"a short read", false, 3, cut, "tile 1 could not be read: 512 of 4096 bytes were there"},
          {"no room", false, 0, no_room, "bytes are needed there"},
          {"a full disk", false, 3, full, "could not be written: No space left"},
          {"an error of the program", false, 3, program, "no more"},
          {"a full disk in a load", true, 3, full, "could not be written: No space left"}};
}

// Nobody can go on but from the checkpoint, in the same program.
TEST(OffloadFaults, AFaultOfOneRankIsAnErrorOnAllAndTheCheckpointLoads) {
  for (const Fault& fault : all_faults()) {
    SCOPED_TRACE(fault.name);
    const TestFolder folder;
    on_all_stages(3, [&](dist::Communicator& communicator, int stage) {
      OffloadRun undisturbed(communicator, in_memory(stage));
      undisturbed.steps(0, 2);
      undisturbed.engine.save(folder / "run");
      int tiles = 0;
      const auto optimizer = hooked_with_states(optim::adamw(), [&tiles] {
        if (update_fails && ++tiles == 2) throw Error("no more");
      });
      OffloadRun run(communicator, offloaded(stage, folder.path()), optimizer);
      run.steps(0, fault.steps);
      const auto fails = [&] {
        if (fault.in_load) run.engine.load(folder / "run");
        run.step(3);
      };
      const std::vector<std::string> what = {
          fault.in_load ? "the model is partly loaded, load another: rank 1"
                        : "the update failed, load a checkpoint: rank 1",
          fault.says};
      expect_error([&] { run.rank == 1 ? fault.happens(folder.path(), fails) : fails(); }, what);
      update_fails = false;
      expect_all_refuse(run, folder / "half", what);
      EXPECT_TRUE(run.engine.load(folder / "run"));
      EXPECT_EQ(run.engine.steps(), 2);
      run.steps(2, 5);
      undisturbed.steps(2, 5);
      EXPECT_TRUE(same_state(whole_state(run.engine.strategy()),
                             whole_state(undisturbed.engine.strategy())));
    });
  }
}

TEST(OffloadFaults, AFolderThatARankDoesNotHaveAndAnotherOptimizerAreErrorsOnAll) {
  const TestFolder folder;
  std::filesystem::create_directory(folder / "states");
  on_ranks(2, [&](dist::Communicator& communicator) {
    const auto refused = [&](const std::filesystem::path& place,
                             const std::vector<std::string>& parts) {
      expect_error([&] { OffloadRun(communicator, offloaded(3, place)); }, parts);
    };
    refused(folder / "missing", {"cannot be kept in " + (folder / "missing").string()});
    refused(folder / (communicator.rank() == 0 ? "missing" : "states"),
            {"the options of the strategy", "rank 0 has", "missing", "rank 1 has", "states"});
    expect_error([&] { OffloadRun(communicator, offloaded(3, folder / "states"), sgd()); },
                 {"the states of torch SGD cannot be offloaded", "optim::adamw()"});
    // Ranks are processes: "states" is another folder for rank 1, as on another host.
    std::filesystem::current_path(communicator.rank() == 0 ? folder.path() : folder / "states");
    refused("states", {"rank 1 has", "cannot be kept in states: No such file or directory"});
  });
}

}  // namespace
}  // namespace zero::testing
