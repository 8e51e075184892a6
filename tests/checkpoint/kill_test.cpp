// Ranks that are killed while they save: whenever it happens, one whole checkpoint is there.
#include <fmt/format.h>
#include <signal.h>
#include <sys/time.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <functional>
#include <random>
#include <stdexcept>
#include <thread>

#include <tests/support/test_folder.hpp>
#include <tests/support/whole_state.hpp>

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
    const train::ParameterShard stored = strategy.local_shard(i);
    if (stored.tensor.defined()) stored.tensor.fill_(static_cast<double>(step));
    const train::ParameterShard piece = strategy.piece(i);
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
  if (std::filesystem::exists(folder / "manifest.json")) {
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
