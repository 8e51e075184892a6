// The end of a program while a checkpoint is written behind: nothing is lost in silence, and
// nothing crashes.
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <memory>
#include <thread>
#include <tuple>

#include <tests/support/engine_run.hpp>
#include <tests/support/ranks.hpp>
#include <tests/support/test_folder.hpp>
#include <zero/base/error.hpp>
#include <zero/io/checkpoint.hpp>

#include "system_calls.hpp"

namespace zero::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::atomic<bool> writes_on = false;
void write_on() { writes_on = true; }

// From now on the threads that write files wait for write_on().
void hold_writers() {
  before_system_call = [](SystemCall call, const std::string& path) {
    while (call == SystemCall::kFsync && path.find("/.rank-") != std::string::npos && !writes_on) {
      std::this_thread::yield();
    }
    return 0;
  };
}

// How a rank ends that has an engine with a save behind, and its exit code; 0: the save is
// complete.
struct End {
  std::string name;
  std::function<void(std::unique_ptr<EngineRun>)> end;
  int code = 1;
};

std::unique_ptr<EngineRun> made_before;

std::vector<End> ends() {
  return {{"Exit", [](auto run) { run.release(), std::exit(0); }},
          {"ExitWithACode", [](auto run) { run.release(), std::exit(3); }, 3},
          {"QuickExit", [](auto run) { run.release(), std::quick_exit(0); }},
          {"ExitWithAStaticEngine", [](auto run) { made_before = std::move(run), std::exit(0); }},
          {"ExitWithAStaticEngineThatEndsFirst",
           [](auto run) {
             static const auto made_after = std::move(run);
             write_on();
             std::exit(0);
           },
           0},
          {"AnEngineThatNobodyDestroys", [](auto run) { run.release(), write_on(); }},
          {"AnException", [](auto) {
             write_on();
             throw Error("the program's own");
           }}};
}

using EndCase = std::tuple<End, int, bool>;

std::string name_of_case(const ::testing::TestParamInfo<EndCase>& info) {
  const auto& [end, ranks, writing] = info.param;
  return fmt::format("{}OnN{}{}", end.name, ranks, writing ? "WhileItIsWritten" : "");
}

class EndOfAProgram : public ::testing::TestWithParam<EndCase> {};
INSTANTIATE_TEST_SUITE_P(Ends, EndOfAProgram,
                         ::testing::Combine(::testing::ValuesIn(ends()), ::testing::Values(1, 2, 3),
                                            ::testing::Bool()),
                         name_of_case);

// The stage is the number of ranks.
TEST_P(EndOfAProgram, WithASaveBehindIsALineAndAnExitCode) {
  const auto& [end, ranks, writing] = GetParam();
  const TestFolder folder;
  const auto exits = ranks_ended({.world_size = ranks}, [&](dist::Communicator& communicator) {
    if (writing) hold_writers();
    auto run = std::make_unique<EngineRun>(communicator, EngineConfig{.stage = ranks});
    run->step(0);
    run->engine.save(folder / "run", {.behind = true});
    const std::string file =
        fmt::format("step-000000001/rank-{:05}-of-{:05}.safetensors", communicator.rank(), ranks);
    while (!writing && !fs::exists(folder / "run" / file)) std::this_thread::yield();
    std::atexit(write_on);  // called before the handlers of what was made until now
    std::at_quick_exit(write_on);
    end.end(std::move(run));
  });
  for (const dist::RankExit& exit : exits) {
    EXPECT_EQ(exit.signal, 0);
    EXPECT_EQ(exit.exit_code, end.code);
    if (end.code == 0) continue;
    const std::string lost = fmt::format(
        "rank {}: the checkpoint {} that is written behind is lost: neither step() nor "
        "finish_save()",
        exit.rank, (folder / "run").string());
    EXPECT_THAT(exit.output, HasSubstr(lost));
    EXPECT_EQ(exit.output.find("is lost"), exit.output.rfind("is lost")) << exit.output;
  }
  EXPECT_EQ(fs::exists(folder / "run" / "checkpoint.json"), end.code == 0);
}

TEST(EndOfAnEngine, WhoseSaveBehindFailsIsALineAndAnExitCode) {
  const TestFolder folder;
  const auto exits = ranks_ended({.world_size = 2}, [&](dist::Communicator& communicator) {
    before_system_call = [](SystemCall call, const std::string&) {
      return call == SystemCall::kFsync ? EIO : 0;
    };
    EngineRun run(communicator, {});
    run.step(0);
    run.engine.save(folder / "run", {.behind = true});
  });
  expect_errors(exits, AllOf(HasSubstr("that was written behind is lost: the checkpoint " +
                                       (folder / "run").string() + " cannot be saved"),
                             Not(HasSubstr("finish_save"))));
}

// Saves when the program has ended but for its static objects.
struct SavesLast {
  ~SavesLast() {
    if (run) run->engine.save(folder);
  }
  std::unique_ptr<EngineRun> run;
  std::string folder;
} saves_last;

TEST(EndOfAProgramThatSaves, InADestructorOfAStaticObjectIsACheckpoint) {
  const TestFolder folder;
  const auto exits = ranks_ended({.world_size = 2}, [&](dist::Communicator& communicator) {
    saves_last.folder = folder / "run";
    saves_last.run = std::make_unique<EngineRun>(communicator, EngineConfig{});
    saves_last.run->step(0);
    saves_last.run->engine.save(folder / "run");
    saves_last.run->step(1);
    std::exit(0);
  });
  EXPECT_EQ(dist::describe_failures(exits), "");
  EXPECT_EQ(io::read_checkpoint_info(folder / "run").step, 2);
}

// Its parent's thread is not there.
TEST(EndOfAForkedProcess, LeavesTheSaveOfItsParentAlone) {
  const TestFolder folder;
  on_ranks(2, [&](dist::Communicator& communicator) {
    hold_writers();
    EngineRun run(communicator, {});
    run.step(0);
    run.engine.save(folder / "run", {.behind = true});
    const pid_t child = ::fork();
    if (child == 0) std::exit(0);
    int status = -1;
    ::waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
    write_on();
    run.engine.finish_save();
    EXPECT_TRUE(run.engine.load(folder / "run"));
  });
}

}  // namespace
}  // namespace zero::testing
