// Ranks that call different functions of the engine. Each hears of it soon, with both names, and
// not when the time limit is over.

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <string>

#include <tests/support/ranks.hpp>
#include <tests/support/test_folder.hpp>
#include <tests/support/toy.hpp>
#include <zero/engine/engine.hpp>
#include <zero/optim/adamw.hpp>

namespace zero::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

struct Mismatch {
  const char* name;
  std::function<void(Engine& engine, const std::string& folder)> rank_0;
  const char* call_of_rank_0;
  std::function<void(Engine& engine, const data::Batch& batch)> others;
  const char* call_of_others;
};

void train(Engine& engine, const data::Batch& batch) {
  engine.backward(engine.forward(batch));
  engine.step();
}

const std::vector<Mismatch> kMismatches = {
    {"SaveAndForward", [](Engine& engine, const std::string& folder) { engine.save(folder); },
     "Engine::save", [](Engine& engine, const data::Batch& batch) { train(engine, batch); },
     "Engine::forward"},
    {"ReadAndForward",
     [](Engine& engine, const std::string&) {
       const train::UnshardedParameters whole(engine.strategy(), 0);
     },
     "Strategy::unshard", [](Engine& engine, const data::Batch& batch) { train(engine, batch); },
     "Engine::forward"},
    {"SaveAndRelease", [](Engine& engine, const std::string& folder) { engine.save(folder); },
     "Engine::save", [](Engine& engine, const data::Batch&) { engine.release(); },
     "Engine::release"},
    {"ReleaseAndRead", [](Engine& engine, const std::string&) { engine.release(); },
     "Engine::release",
     [](Engine& engine, const data::Batch&) {
       const train::UnshardedParameters whole(engine.strategy(), 1);
     },
     "Strategy::unshard"},
};

class CallMismatch : public ::testing::TestWithParam<std::tuple<int, const char*, std::size_t>> {};
INSTANTIATE_TEST_SUITE_P(Ranks, CallMismatch,
                         ::testing::Combine(::testing::Values(2, 3),
                                            ::testing::Values("auto", "shared", "tcp"),
                                            ::testing::Range<std::size_t>(0, kMismatches.size())),
                         [](const auto& info) {
                           return fmt::format("N{}_{}_{}", std::get<0>(info.param),
                                              std::get<1>(info.param),
                                              kMismatches[std::get<2>(info.param)].name);
                         });

TEST_P(CallMismatch, IsSaidOnAllRanksWithBothCalls) {
  const auto& [ranks, transport, which] = GetParam();
  const Mismatch& mismatch = kMismatches[which];
  const TestFolder folder;
  ::setenv("ZERO_TRANSPORT", transport, /*overwrite=*/1);
  const auto ends = ranks_ended(
      {.world_size = ranks, .timeout = std::chrono::minutes(5)}, [&](dist::Communicator& c) {
        Toy toy;
        Engine engine(*toy.model, c, optim::adamw(), {.overlap = {.stage = 3}}, &toy.values);
        train(engine, toy.batch(c.rank(), 0));
        c.rank() == 0 ? mismatch.rank_0(engine, folder.path() / "checkpoint")
                      : mismatch.others(engine, toy.batch(c.rank(), 1));
      });
  ::unsetenv("ZERO_TRANSPORT");
  for (const dist::RankExit& end : ends) {
    EXPECT_NE(end.exit_code, 0);
    EXPECT_THAT(end.output,
                AllOf(HasSubstr(mismatch.call_of_rank_0), HasSubstr(mismatch.call_of_others)))
        << "rank " << end.rank;
  }
}

}  // namespace
}  // namespace zero::testing
