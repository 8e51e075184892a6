// Ranks that call different functions of the engine. Each hears of it soon, with both names, and
// not when the time limit is over.

#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <string>

#include <tests/support/engine_run.hpp>
#include <tests/support/ranks.hpp>
#include <tests/support/test_folder.hpp>

namespace zero::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

struct Call {
  const char* function;
  std::function<void(EngineRun& run, const std::string& folder)> call;
};

const Call kSave{"Engine::save",
                 [](EngineRun& run, const std::string& folder) { run.engine.save(folder); }};
const Call kForward{"Engine::forward", [](EngineRun& run, const std::string&) { run.step(1); }};
const Call kRead{"Strategy::unshard", [](EngineRun& run, const std::string&) {
                   const train::UnshardedParameters whole(run.engine.strategy(), 0);
                 }};
const Call kRelease{"Engine::release",
                    [](EngineRun& run, const std::string&) { run.engine.release(); }};

struct Mismatch {
  const char* name;
  const Call& of_rank_0;
  const Call& of_others;
};

const std::vector<Mismatch> kMismatches = {{"SaveAndForward", kSave, kForward},
                                           {"ReadAndForward", kRead, kForward},
                                           {"SaveAndRelease", kSave, kRelease},
                                           {"ReleaseAndRead", kRelease, kRead}};

class CallMismatch : public ::testing::TestWithParam<std::tuple<int, const char*, std::size_t>> {};
INSTANTIATE_TEST_SUITE_P(Ranks, CallMismatch,
                         ::testing::Combine(::testing::Values(2, 3),
                                            ::testing::Values("auto", "tcp"),
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
        EngineRun run(c, {.overlap = {.stage = 3}});
        run.step(0);
        const Call& mine = c.rank() == 0 ? mismatch.of_rank_0 : mismatch.of_others;
        mine.call(run, folder.path() / "checkpoint");
      });
  ::unsetenv("ZERO_TRANSPORT");
  expect_errors(
      ends, AllOf(HasSubstr(mismatch.of_rank_0.function), HasSubstr(mismatch.of_others.function)));
}

}  // namespace
}  // namespace zero::testing
