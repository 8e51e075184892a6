// Parameters on a disk: the engine at stage 3 has the bits of the same one in memory, holds nothing
// of them between steps, and moves the bytes of the formula. Whatever reads or writes weights finds
// them. A disk that fails on one rank is an error on all.

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <optional>
#include <thread>
#include <vector>

#include <05_prefetch_overlap/overlap.hpp>
#include <tests/support/disk.hpp>
#include <tests/support/disk_traffic.hpp>
#include <tests/support/error_of.hpp>
#include <tests/support/offload.hpp>
#include <tests/support/same_bits.hpp>
#include <tests/support/states.hpp>
#include <tests/support/test_folder.hpp>
#include <tools/plan/planner.hpp>
#include <zero/io/state_dict.hpp>
#include <zero/optim/offload/offloaded.hpp>
#include <zero/optim/offload/tile_file.hpp>
#include <zero/train/unsharded_parameters.hpp>

#include "offload_runs.hpp"

namespace zero::testing {
namespace {

using optim::TileFile;

Overlap& overlap(train::Strategy& strategy) { return dynamic_cast<Overlap&>(strategy); }

ZERO_TESTS_ON_RANKS(OffloadParameters, 1, 2, 3, 4);

// Small buckets: units with several.
TEST_P(OffloadParameters, HaveTheBitsOfThoseInMemory) {
  const TestFolder folder;
  on_ranks(GetParam(), [&](dist::Communicator& communicator) {
    for (const at::ScalarType dtype : kDtypes) {
      for (const std::string mode : {"engine3", "engine3:bucket_mib=0.001:lookahead=2",
                                     "engine3:lookahead=0", "engine3:whole_below=200"}) {
        SCOPED_TRACE(fmt::format("{} {}", mode, c10::toString(dtype)));
        Session resident(communicator, "engine3", options_of(dtype));
        Session on_disk(communicator, parameters_offloaded(mode, folder.path()), options_of(dtype));
        Session both(communicator,
                     offloaded(parameters_offloaded(mode, folder.path()), folder.path()),
                     options_of(dtype));
        const std::vector<double> expected = train(resident);
        EXPECT_EQ(train(on_disk), expected);
        EXPECT_EQ(train(both), expected);
        EXPECT_GE(on_disk.trainer().steps() - on_disk.trainer().skipped_steps(), 3);
        EXPECT_TRUE(same_state(whole_state(on_disk), whole_state(resident)));
        EXPECT_TRUE(same_state(whole_state(both), whole_state(resident)));
      }
    }
  });
  EXPECT_TRUE(folder.listing().empty());
}

TEST_P(OffloadParameters, GroupsOfRanksAndOtherTransfersHaveTheSameBits) {
  if (GetParam() != 4) return;
  const TestFolder folder;
  on_ranks(4, [&](dist::Communicator& communicator) {
    for (const std::string mode :
         {"hsdp3:shard_size=2", "hpz:group_size=2", "qwz", "qgz:group_size=2"}) {
      SCOPED_TRACE(mode);
      Session resident(communicator, mode, options_of(at::kBFloat16));
      Session on_disk(communicator, parameters_offloaded(mode, folder.path()),
                      options_of(at::kBFloat16));
      EXPECT_EQ(train(on_disk), train(resident));
      EXPECT_TRUE(same_state(whole_state(on_disk), whole_state(resident)));
    }
  });
}

// From memory to the disk and from the disk to memory, at another world size.
TEST_P(OffloadParameters, CheckpointsGoFromTheDiskToMemoryAndBack) {
  const TestFolder folder;
  for (const at::ScalarType dtype : kDtypes) {
    for (const bool to_disk : {true, false}) {
      SCOPED_TRACE(fmt::format("{} {}", c10::toString(dtype), to_disk ? "to disk" : "from disk"));
      const auto place = folder / fmt::format("{}{}", c10::toString(dtype), to_disk);
      const auto mode = [&](bool on_disk) {
        return on_disk ? parameters_offloaded("engine3", folder.path()) : std::string("engine3");
      };
      on_ranks(GetParam(), [&](dist::Communicator& communicator) {
        Session saves(communicator, mode(!to_disk), options_of(dtype));
        train(saves, 0, 2);
        io::save_checkpoint(saves.strategy(), place, note(2, "engine3"));
        const WholeState state = whole_state(saves);
        if (communicator.rank() == 0) keep(place / "state", state);
        communicator.barrier();
      });
      on_ranks(GetParam() % 4 + 1, [&](dist::Communicator& communicator) {
        Session loads(communicator, mode(to_disk), options_of(dtype));
        Session beside(communicator, mode(!to_disk), options_of(dtype));
        train(loads, 4, 6);  // has other states already
        for (Session* session : {&loads, &beside}) {
          io::load_checkpoint(session->strategy(), place);
          EXPECT_TRUE(same_state(whole_state(*session), kept(place / "state")));
        }
        EXPECT_EQ(loads.step(2).loss, beside.step(2).loss);
        loads.step(4);
        beside.step(4);
        EXPECT_TRUE(same_state(whole_state(loads), whole_state(beside)));
      });
    }
  }
}

// On this rank.
std::vector<plan::UnitInFile> files_of(const Overlap& strategy) {
  std::vector<plan::UnitInFile> units(strategy.list().units.size(), {.is_updated = false});
  for (const train::FlatParameters& bucket : strategy.buckets()) {
    plan::UnitInFile& unit = units[strategy.list().parameters[bucket.members().front()].unit];
    unit.file += bucket.shard_bytes();
    if (strategy.communicator().size() > 1) unit.gathered += bucket.full_bytes();
    unit.is_updated = unit.is_updated || bucket.updates_any();
  }
  for (plan::UnitInFile& unit : units) unit.file = TileFile::aligned(unit.file);
  return units;
}

// Each shard is read in forward and again in backward of each micro-batch (the root, which stays
// whole in between, once), and read and written in the update; a frozen unit only in the passes.
TEST_P(OffloadParameters, MoveTheBytesOfTheFormula) {
  const TestFolder folder;
  on_ranks(GetParam(), [&](dist::Communicator& communicator) {
    for (const bool states_too : {false, true}) {
      EngineConfig config = parameters_offloaded(folder.path());
      config.accumulation_steps = 2;
      if (states_too) config.overlap.offload = folder.path().string();
      Toy toy(nn::MlpConfig{.hidden = {61, 61, 61}});
      const std::size_t frozen = 2;  // gradients pass through it
      for (const auto& p : nn::list_parameters(*toy.model).parameters) {
        if (p.unit == frozen) p.tensor.requires_grad_(false);
      }
      Engine engine(*toy.model, communicator, optim::adamw(), config, &toy.values);
      Overlap& strategy = overlap(engine.strategy());
      testing::DiskTraffic of_system;
      for (int step = 0; step < 6; ++step) {
        const auto states = [&] { return strategy.optimizer().offload_traffic(); };
        const optim::OffloadTraffic before = strategy.parameter_traffic(), of_states = states();
        of_system.begin_step();
        for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
          engine.backward(engine.forward(toy.batch(communicator.rank(), 2 * step + micro_batch)));
          engine.step();
        }
        const plan::FileTraffic moved = plan::file_traffic(files_of(strategy), /*micro_batches=*/2);
        const std::int64_t reads = moved.in_passes + moved.in_update, writes = moved.in_update;
        const optim::OffloadTraffic after = strategy.parameter_traffic();
        EXPECT_EQ(after.read_bytes - before.read_bytes, reads);
        EXPECT_EQ(after.written_bytes - before.written_bytes, writes);
        of_system.end_step(reads + states().read_bytes - of_states.read_bytes,
                           writes + states().written_bytes - of_states.written_bytes);
      }
      const std::string file = offloaded_file(folder.path());
      const int descriptor = std::stoi(file.substr(file.rfind('/') + 1));
      const bool past_the_cache = (::fcntl(descriptor, F_GETFL) & O_DIRECT) != 0;
      if (past_the_cache) of_system.expect_only_what_is_counted();
    }
  });
}

TEST_P(OffloadParameters, TakeNoMemoryAtRestAndThatOfTheFormulaInAPass) {
  const TestFolder folder;
  on_ranks(GetParam(), [&](dist::Communicator& communicator) {
    for (const std::int64_t lookahead : {0, 1, 2}) {
      SCOPED_TRACE(lookahead);
      const memory::Snapshot before = memory::snapshot();
      EngineConfig config = parameters_offloaded(folder.path());
      config.overlap.lookahead = lookahead;
      EngineRun run(communicator, config, optim::adamw(), at::kFloat,
                    {64, 64, 64, 65, 64, 64, 64, 64});
      const auto held = [&] { return states_since(before).parameters; };
      EXPECT_EQ(held(), 0);
      run.steps(0, 2);
      EXPECT_EQ(held(), 0);
      EXPECT_EQ(run.engine.strategy().costs().at_rest.parameters, 0);

      memory::reset_peaks();
      run.step(2);
      const std::int64_t peak = memory::snapshot().peak_of(memory::Category::kParameters) -
                                before[memory::Category::kParameters];
      EXPECT_EQ(peak,
                plan::parameters_in_memory(files_of(overlap(run.engine.strategy())), lookahead));
    }
  });
}

// The planner knows units and ranks alone, and tells of the fullest rank.
TEST_P(OffloadParameters, AreWhatThePlannerSays) {
  const TestFolder folder;
  on_ranks(GetParam(), [&](dist::Communicator& communicator) {
    OffloadRun run(communicator, parameters_offloaded(folder.path()));
    Overlap& strategy = overlap(run.engine.strategy());
    plan::Request request;
    request.policy = plan::fp32();
    request.world_size = communicator.size();
    request.disk.bandwidth = 1e9;
    request.disk.parameters = true;
    request.model.parameters = strategy.list().numel();
    request.model.units.resize(strategy.list().units.size() - 1);
    for (const nn::Parameter& p : strategy.list().parameters) {
      (p.unit == 0 ? request.model.root : request.model.units[p.unit - 1]) += p.numel();
    }
    const plan::StagePlan row = plan::make_plan(request).stages.back();
    EXPECT_EQ(row.states.parameters, strategy.costs().at_rest.parameters);
    run.step(0);
    const optim::OffloadTraffic before = strategy.parameter_traffic();
    run.step(1);
    const optim::OffloadTraffic after = strategy.parameter_traffic();
    const std::int64_t states = plan::share(request.model.parameters, communicator.size()) * 8;
    const std::int64_t written = after.written_bytes - before.written_bytes;
    const std::int64_t moved = after.read_bytes - before.read_bytes + written;
    EXPECT_LE(moved, row.disk->moved - 2 * states);
    if (run.rank > 0) return;  // may have a shard of padding alone, which no update needs
    EXPECT_EQ(moved, row.disk->moved - 2 * states);
    EXPECT_EQ(written, row.disk->file - states);
  });
}

// What the program writes into weights, reads of them, evaluates with them and loads into them.
TEST_P(OffloadParameters, TheProgramFindsItsOwnWrites) {
  const TestFolder folder;
  on_ranks(GetParam(), [&](dist::Communicator& communicator) {
    OffloadRun resident(communicator, in_memory(3));
    OffloadRun run(communicator, parameters_offloaded(folder.path()));
    for (OffloadRun* each : {&resident, &run}) {
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
    EXPECT_TRUE(same_bits(run.weights(), resident.weights()));
    const auto predicted = [&](OffloadRun& each) {
      const at::NoGradGuard no_grad;
      return each.forward(7);
    };
    EXPECT_TRUE(at::equal(predicted(run), predicted(resident)));
    const auto shards = io::shards_of_state_dict(run.engine.strategy());
    for (const auto& [name, shard] : io::shards_of_state_dict(resident.engine.strategy())) {
      EXPECT_TRUE(at::equal(shards.at(name).tensor, shard.tensor)) << name;
    }
    auto dict = io::state_dict(resident.engine.strategy(), io::WholeOn::kAllRanks);
    for (auto& [name, tensor] : dict) tensor.neg_();
    for (OffloadRun* each : {&resident, &run}) {
      io::load_weights(each->engine.strategy(), dict);
      each->step(2);
      const auto place = folder / (each == &run ? "run" : "resident");
      each->engine.save(place, {.behind = true});
      each->step(3);
      each->engine.finish_save();
      EXPECT_TRUE(each->engine.load(place));
      each->step(4);
    }
    EXPECT_TRUE(
        same_state(whole_state(run.engine.strategy()), whole_state(resident.engine.strategy())));
  });
}

// Each block of each rank is early or late by chance.
TEST(OffloadParametersEngine, ASlowDiskChangesNoBit) {
  const TestFolder folder;
  on_ranks(3, [&](dist::Communicator& communicator) {
    OffloadRun resident(communicator, in_memory(3));
    OffloadRun run(communicator, parameters_offloaded(folder.path()));
    std::atomic<unsigned> blocks = 0;
    const Disk disk([&](const Transfer& transfer) {
      const unsigned drawn = (++blocks + static_cast<unsigned>(run.rank)) * 2654435761U >> 20;
      std::this_thread::sleep_for(std::chrono::microseconds(drawn % 4 == 0 ? drawn : 0));
      return transfer.as_asked();
    });
    run.steps(0, 5);
    resident.steps(0, 5);
    EXPECT_TRUE(
        same_state(whole_state(run.engine.strategy()), whole_state(resident.engine.strategy())));
  });
}

// ---- what fails

// Each read of a step in turn, then each write. A step in whose passes a disk failed can be done
// again, one in whose update it failed needs a checkpoint.
TEST(OffloadParameterFaults, ADiskThatFailsOnOneRankIsAnErrorOnAllAndNothingIsLost) {
  const TestFolder folder;
  on_ranks(3, [&](dist::Communicator& communicator) {
    OffloadRun resident(communicator, in_memory(3));
    resident.steps(0, 3);
    OffloadRun run(communicator, parameters_offloaded(folder.path()));
    run.steps(0, 2);
    run.engine.save(folder / "run");
    for (const bool writes : {false, true}) {
      int in_passes = 0, in_updates = 0;
      for (int number = 0; number < 50; ++number) {
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
        EXPECT_THAT(message, ::testing::AllOf(::testing::HasSubstr("rank 1: parameters in"),
                                              ::testing::HasSubstr(writes ? "could not be written"
                                                                          : "could not be read")));
        if (message.find("the update failed") == std::string::npos) {
          ++in_passes;
          run.engine.give_up_step();
          continue;
        }
        ++in_updates;
        run.engine.give_up_step();
        const std::vector<std::string> what = {"load a checkpoint", "rank 1: parameters in"};
        expect_error([&] { run.forward(2); }, what);
        expect_error(
            [&] {
              const at::NoGradGuard no_grad;
              run.engine.evaluate([&] { return run.toy.model->predict(run.toy.batch(0, 2)); });
            },
            what);
        expect_error([&] { run.engine.save(folder / "half"); },
                     {"cannot be saved", "load a checkpoint"});
        EXPECT_TRUE(run.engine.load(folder / "run"));
      }
      EXPECT_EQ(in_passes > 4, !writes);
      EXPECT_GE(in_updates, 3);
      EXPECT_TRUE(
          same_state(whole_state(run.engine.strategy()), whole_state(resident.engine.strategy())));
      EXPECT_TRUE(run.engine.load(folder / "run"));
    }
  });
}

// It is found in every way in which weights are used, and never written back as if it were right.
TEST(OffloadParameterFaults, ABadByteOfOneRankIsAnErrorOnAllUntilACheckpointIsLoaded) {
  const TestFolder folder;
  on_ranks(2, [&](dist::Communicator& communicator) {
    OffloadRun undisturbed(communicator, in_memory(3));
    OffloadRun run(communicator, parameters_offloaded(folder.path()));
    run.steps(0, 2);
    run.engine.save(folder / "run");
    if (run.rank == 1) spoil_offloaded_file(folder.path(), 5);
    const std::vector<std::string> what = {"rank 1", folder.path().string(),
                                           "tile 0 has other bytes"};
    for (int again = 0; again < 2; ++again) {
      expect_error([&] { run.forward(2); }, what);
      expect_error(
          [&] {
            const at::NoGradGuard no_grad;
            run.engine.evaluate([&] { return run.toy.model->predict(run.toy.batch(run.rank, 2)); });
          },
          what);
      expect_error([&] { run.weights(); }, what);
      expect_error([&] { run.engine.save(folder / "half"); }, what);
    }
    EXPECT_FALSE(std::filesystem::exists(folder / "half" / "manifest.json"));
    EXPECT_TRUE(run.engine.load(folder / "run"));
    run.steps(2, 5);
    undisturbed.steps(0, 5);
    EXPECT_TRUE(
        same_state(whole_state(run.engine.strategy()), whole_state(undisturbed.engine.strategy())));
  });
}

TEST(OffloadParameterFaults, AFullDiskAndAFolderThatIsMissingAreErrorsOfAllRanks) {
  const TestFolder folder;
  on_ranks(3, [&](dist::Communicator& communicator) {
    const bool is_it = communicator.rank() == 1;
    {
      std::optional<FullDisk> full;
      if (is_it) full.emplace(4096);
      expect_error([&] { OffloadRun(communicator, parameters_offloaded(folder.path())); },
                   {"parameters cannot be offloaded: rank 1: parameters in", "are needed there"});
    }
    std::filesystem::current_path(folder.path());
    if (!is_it) std::filesystem::create_directories(fmt::format("{}/states", communicator.rank()));
    std::filesystem::create_directories(fmt::format("{}", communicator.rank()));
    std::filesystem::current_path(fmt::format("{}", communicator.rank()));
    expect_error([&] { OffloadRun(communicator, parameters_offloaded("states")); },
                 {"rank 1: parameters cannot be kept in states: No such file"});
  });
}

TEST(OffloadParameterFaults, WhatCannotBeOffloadedIsRefused) {
  const TestFolder folder;
  on_ranks(2, [&](dist::Communicator& communicator) {
    for (const int stage : {0, 1, 2}) {
      EngineConfig config = parameters_offloaded(folder.path());
      config.overlap.stage = stage;
      expect_error([&] { OffloadRun(communicator, config); },
                   {fmt::format("offload_parameters: stage {} keeps", stage), "take stage 3"});
    }
    dist::Mesh mesh(communicator, {{"data", 1}, {"tensor", 2}});
    Toy toy;
    expect_error(
        [&] {
          Engine(*toy.model, mesh, optim::adamw(), parameters_offloaded(folder.path()),
                 &toy.values);
        },
        {"offload_parameters: the mesh has more axes than \"data\""});
  });
}

// A shard that nobody has brought cannot be read by mistake.
TEST(OffloadParameterFaults, AShardInItsFileIsNotRead) {
  const TestFolder folder;
  on_ranks(2, [&](dist::Communicator& communicator) {
    OffloadRun run(communicator, parameters_offloaded(folder.path()));
    const at::Tensor mine = run.engine.strategy().local_shard(0).tensor;
    try {
      mine.sum();
      ADD_FAILURE() << "it was read";
    } catch (const c10::Error& error) {
      EXPECT_THAT(error.msg(), ::testing::HasSubstr("is in a file (offload_parameters)"));
    }
    run.engine.strategy().bring_shard(0);
    mine.sum();
  });
}

}  // namespace
}  // namespace zero::testing
