// Ranks that are killed while they save: whenever it happens, one whole checkpoint is there.
#include <fmt/format.h>
#include <signal.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <functional>
#include <random>
#include <regex>
#include <stdexcept>
#include <thread>

#include <tests/support/test_folder.hpp>
#include <tests/support/whole_state.hpp>

#include "system_calls.hpp"

namespace zero::testing {
namespace {

using testing::TestFolder;

constexpr int kRanks = 2;
constexpr const char* kMode = "tensor_zero3";

// Every number of the model and the optimizer becomes `step`, so that one look tells which
// checkpoint each of them comes from.
void mark(Session& session, std::int64_t step) {
  train::Strategy& strategy = session.strategy();
  for (std::size_t i = 0; i < strategy.list().size(); ++i) {
    const at::NoGradGuard no_grad;
    const train::ParameterShard stored = strategy.placement(i).kept;
    if (stored.tensor.defined()) stored.tensor.fill_(static_cast<double>(step));
    const train::ParameterShard piece = strategy.placement(i).updated;
    if (!piece.tensor.defined()) continue;
    for (auto& [name, state] : strategy.optimizer().state(piece.tensor)) {
      state.fill_(static_cast<double>(step));
    }
  }
}

void expect_marked(Session& session, std::int64_t step) {
  for (const auto& [name, tensor] : whole_state(session)) {
    const bool kept = name.starts_with("parameter/") || name.starts_with("exp_avg");
    // A frozen parameter has no states.
    if (!kept || (name.starts_with("exp_avg") && tensor.abs().sum().item<double>() == 0)) continue;
    EXPECT_TRUE(tensor.eq(static_cast<double>(step)).all().item<bool>())
        << name << " is not of step " << step;
  }
}

// This process dies, with nothing cleaned up, `microseconds` from now.
void die_in(std::int64_t microseconds) {
  ::signal(SIGALRM, SIG_DFL);
  itimerval timer{};
  timer.it_value.tv_sec = microseconds / 1'000'000;
  timer.it_value.tv_usec = microseconds % 1'000'000;
  ::setitimer(ITIMER_REAL, &timer, nullptr);
}

using Save = std::function<void(Session&, const std::filesystem::path&, std::int64_t step)>;

void save_at_once(Session& session, const std::filesystem::path& folder, std::int64_t step) {
  io::save_checkpoint(session.strategy(), folder, note(step, kMode));
}

// The weights change while a copy of them is written.
void save_behind(Session& session, const std::filesystem::path& folder, std::int64_t step) {
  io::PendingCheckpoint pending(session.strategy(), folder, note(step, kMode));
  mark(session, -1);
  while (!pending.is_written()) std::this_thread::yield();
  pending.finish();
}

// Loads what is there, checks it, and saves further steps until it is killed. Gives the step that
// was loaded and the microseconds that a save takes.
std::string resume(dist::Communicator& communicator, const std::filesystem::path& folder,
                   const Save& save, std::int64_t victim, std::int64_t microseconds) {
  Session session(communicator, kMode, checkpoint_options());
  session.step(0);
  std::int64_t step = 0;
  if (std::filesystem::exists(folder / "checkpoint.json")) {
    step = io::load_checkpoint(session.strategy(), folder).step;
    expect_marked(session, step);
    if (::testing::Test::HasFailure()) throw std::runtime_error("not one whole checkpoint");
  }
  const auto started = std::chrono::steady_clock::now();
  communicator.barrier();
  if (microseconds > 0 && (victim < 0 || victim == communicator.rank())) die_in(microseconds);
  const int saves = microseconds > 0 ? 1000 : 1;
  for (int i = 1; i <= saves; ++i) {
    mark(session, step + i);
    save(session, folder, step + i);
  }
  const auto taken = std::chrono::steady_clock::now() - started;
  return fmt::format("{} {}", step + saves,
                     std::chrono::duration_cast<std::chrono::microseconds>(taken).count());
}

void kill_again_and_again(int times, const Save& save) {
  const TestFolder folder;
  std::mt19937_64 random(20240601);
  RankOptions options;
  options.world_size = kRanks;
  // Who waits for a dead rank need not wait long.
  RankOptions impatient = options;
  impatient.timeout = std::chrono::seconds(2);
  int kills = 0;
  std::int64_t saved = 0;
  std::int64_t microseconds = 0;
  // A save that nobody disturbs: first, to know how long it takes, and after every kill, to look.
  const auto save_in_peace = [&] {
    const auto exits = ranks_ended(options, [&](dist::Communicator& communicator) {
      const std::string text = resume(communicator, folder / "run", save, -1, 0);
      if (communicator.rank() == 0) std::ofstream(folder / "result") << text;
    });
    for (const auto& exit : exits) ASSERT_TRUE(exit.ok()) << exit.output;
    const std::int64_t before = saved;
    std::ifstream(folder / "result") >> saved >> microseconds;
    EXPECT_GT(saved, before) << "a checkpoint that was committed is gone";
  };
  save_in_peace();
  for (int i = 0; i < times && !::testing::Test::HasFailure(); ++i) {
    // Up to three saves in: mostly there is a checkpoint to lose. One rank, the other, or both.
    const auto when = static_cast<std::int64_t>(random() % (3 * microseconds)) + 1;
    const auto victim = static_cast<std::int64_t>(random() % (kRanks + 1)) - 1;
    const auto exits = ranks_ended(impatient, [&](dist::Communicator& communicator) {
      resume(communicator, folder / "run", save, victim, when);
    });
    const bool killed = std::any_of(exits.begin(), exits.end(),
                                    [](const auto& exit) { return exit.signal == SIGALRM; });
    if (killed) ++kills;
    save_in_peace();
  }
  EXPECT_GT(kills, times / 2) << "hardly anybody died";
  const std::filesystem::directory_iterator names(folder / "run");
  EXPECT_EQ(std::distance(names, {}), 2) << "what killed saves left is removed by the next";
}

// ---- killed at a call of the system

// The call of one rank before which it is killed, the `count`-th to a path that ends so, while it
// saves step 3 behind and the folder has steps 2 and 1.
struct Phase {
  std::string name;
  int rank;
  SystemCall call;
  std::string path;  // with what names a process and a file left out
  int count = 1;
  std::int64_t newest = 2;  // the checkpoint that loads then
};

std::string shard(int rank) { return fmt::format("/rank-{:05}-of-00002.safetensors", rank); }
// A file that has not got its name yet: a dot, the name, two numbers.
std::string unnamed(const std::string& name) { return "/." + name.substr(1); }

std::vector<Phase> phases() {
  std::vector<Phase> all;
  for (const int r : {0, 1}) {
    const std::string name = fmt::format("OfRank{}", r);
    const std::string file = "/step-000000003" + shard(r);
    all.push_back({"BeforeAShardIsWritten" + name, r, SystemCall::kFallocate,
                   "/step-000000003" + unnamed(shard(r))});
    all.push_back({"BeforeAShardIsOnTheDisk" + name, r, SystemCall::kFsync,
                   "/step-000000003" + unnamed(shard(r))});
    all.push_back({"BeforeAShardHasItsName" + name, r, SystemCall::kRename, file});
    all.push_back({"AfterAShard" + name, r, SystemCall::kFsync, "/step-000000003"});
  }
  const std::string record = "/checkpoint.json", second = "/step-000000002.json";
  all.push_back({"BeforeTheOneBeforeIsKept", 0, SystemCall::kFallocate, unnamed(second)});
  all.push_back({"BeforeTheOneBeforeHasItsName", 0, SystemCall::kRename, second});
  all.push_back({"BeforeTheRecordIsWritten", 0, SystemCall::kFallocate, unnamed(record)});
  all.push_back({"BeforeTheRecordHasItsName", 0, SystemCall::kRename, record});
  // The folder reaches the disk before, with the record of step 2, and with this one.
  all.push_back({"AfterTheRecord", 0, SystemCall::kFsync, "/run", /*count=*/3, /*newest=*/3});
  const auto removes = [&](const std::string& name, const std::string& path) {
    all.push_back({name, 0, SystemCall::kRemove, path, /*count=*/1, /*newest=*/3});
  };
  removes("BeforeTheOldestIsRemoved", "/step-000000001.json");
  removes("BeforeAShardOfTheOldestIsRemoved", "/step-000000001" + shard(0));
  removes("BeforeTheLastShardOfTheOldestIsRemoved", "/step-000000001" + shard(1));
  removes("BeforeTheFolderOfTheOldestIsRemoved", "/step-000000001");
  return all;
}

// From now on.
void die_at(const Phase& phase) {
  before_system_call = [phase, left = phase.count](SystemCall call,
                                                   const std::string& path) mutable {
    static const std::regex numbers(R"(\.\d+\.\d+$)");
    const bool is_it = std::regex_replace(path, numbers, "").ends_with(phase.path);
    if (call == phase.call && is_it && --left == 0) ::kill(::getpid(), SIGKILL);
    return 0;
  };
}

class CheckpointKilledAt : public ::testing::TestWithParam<Phase> {};
INSTANTIATE_TEST_SUITE_P(Phases, CheckpointKilledAt, ::testing::ValuesIn(phases()),
                         [](const auto& info) { return info.param.name; });

TEST_P(CheckpointKilledAt, TheLastTwoWholeCheckpointsLoad) {
  const Phase& phase = GetParam();
  const TestFolder folder;
  const std::filesystem::path run = folder / "run";
  constexpr int kKeep = 2;
  RankOptions impatient;
  impatient.timeout = std::chrono::seconds(2);
  const auto exits = ranks_ended(impatient, [&](dist::Communicator& communicator) {
    Session session(communicator, kMode, checkpoint_options());
    session.step(0);
    for (const std::int64_t step : {1, 2, 3}) {
      mark(session, step);
      if (step == 3 && communicator.rank() == phase.rank) die_at(phase);
      io::PendingCheckpoint pending(session.strategy(), run, note(step, kMode), kKeep);
      mark(session, -1);
      pending.finish();
    }
  });
  EXPECT_EQ(exits[static_cast<std::size_t>(phase.rank)].signal, SIGKILL) << "it did not get there";
  on_ranks(kRanks, [&](dist::Communicator& communicator) {
    Session session(communicator, kMode, checkpoint_options());
    session.step(0);
    const auto expect_step = [&](const std::filesystem::path& place, std::int64_t step) {
      EXPECT_EQ(io::load_checkpoint(session.strategy(), place).step, step);
      expect_marked(session, step);
    };
    const auto older = [&](std::int64_t step) {
      return run / fmt::format("step-{:09}.json", step);
    };
    expect_step(run, phase.newest);
    expect_step(older(phase.newest - 1), phase.newest - 1);
    if (std::filesystem::exists(older(1))) expect_step(older(1), 1);
    communicator.barrier();
    mark(session, 4);
    io::save_checkpoint(session.strategy(), run, note(4, kMode), kKeep);
    expect_step(run, 4);
    expect_step(older(phase.newest), phase.newest);
    const std::filesystem::directory_iterator names(run);
    EXPECT_EQ(std::distance(names, {}), 4) << "what the killed save left is removed by the next";
  });
}

TEST(CheckpointKilled, AtTenRandomPointsOneWholeCheckpointStays) {
  kill_again_and_again(10, save_at_once);
}

TEST(CheckpointKilled, WhileItIsWrittenBehindOneWholeCheckpointStays) {
  kill_again_and_again(10, save_behind);
}

TEST(SlowCheckpointKilled, AtAHundredRandomPointsOneWholeCheckpointStays) {
  kill_again_and_again(100, save_at_once);
}

}  // namespace
}  // namespace zero::testing
