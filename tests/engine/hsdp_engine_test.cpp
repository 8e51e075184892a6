// The engine's option shard_size, which makes it the strategy of chapter 06.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include <tests/support/engine_run.hpp>
#include <tests/support/error_of.hpp>
#include <tests/support/ranks.hpp>
#include <tests/support/same_bits.hpp>
#include <tests/support/test_folder.hpp>
#include <zero/engine/engine_config.hpp>
#include <zero/train/registry.hpp>

namespace zero::testing {
namespace {

using ::testing::HasSubstr;

// `shard_size`: a number, or "host".
EngineConfig with_groups(int stage, const nlohmann::json& shard_size) {
  return {.overlap = {.stage = stage},
          .more = nlohmann::json{{"shard_size", shard_size}}.dump(),
          .clip_norm = 0.5};
}

TEST(EngineInGroups, TrainsAlikeAtAllStagesAndAsWithoutGroupsIfThereIsOne) {
  on_ranks(4, [](dist::Communicator& communicator) {
    const auto trained = [&](const EngineConfig& config) {
      EngineRun run(communicator, config);
      run.steps(0, 3);
      return run.weights();
    };
    const auto in_pairs = trained(with_groups(1, 2));
    EXPECT_TRUE(same_bits(trained(with_groups(2, 2)), in_pairs));
    EXPECT_TRUE(same_bits(trained(with_groups(3, 2)), in_pairs));
    const auto alone = trained({.overlap = {.stage = 3}, .clip_norm = 0.5});
    EXPECT_TRUE(same_bits(trained(with_groups(3, 4)), alone));
    EXPECT_TRUE(same_bits(trained(with_groups(3, "host")), alone));
  });
}

TEST(EngineInGroups, ResumesOnAnotherMesh) {
  const TestFolder folder;
  on_ranks(4, [&](dist::Communicator& communicator) {
    EngineRun first(communicator, with_groups(3, 2));
    first.steps(0, 2);
    first.engine.save(folder.path());
    const auto saved = first.weights();
    for (const EngineConfig& config :
         {with_groups(2, 4), with_groups(1, 1), EngineConfig{.overlap = {.stage = 3}}}) {
      EngineRun second(communicator, config);
      second.steps(7, 8);  // what was there before must go
      EXPECT_TRUE(second.engine.load(folder.path()));
      EXPECT_TRUE(same_bits(second.weights(), saved));
      second.steps(2, 3);
    }
  });
}

TEST(EngineInGroups, RefusesSizesThatDoNotFit) {
  on_ranks(4, [](dist::Communicator& communicator) {
    expect_error([&] { EngineRun(communicator, with_groups(3, 3)); }, {"4 is not a multiple of 3"});
    expect_error([&] { EngineRun(communicator, with_groups(0, 2)); }, {"stage is 0"});
    expect_error([&] { EngineRun(communicator, with_groups(3, -7)); }, {"shard_size is -7"});
  });
}

TEST(EngineInGroups, ReadsItsSize) {
  EXPECT_EQ(engine_config(R"({"shard_size": 4})").more, R"({"shard_size":4})");
  for (const char* const size : {"4", "\"host\""}) {
    EXPECT_EQ(mode_of(engine_config(fmt::format(R"({{"stage": 2, "shard_size": {}}})", size))),
              "hsdp2");
  }
  EXPECT_EQ(mode_of(engine_config("{}")), "engine3");
  expect_error([] { engine_config(R"({"shard_size": 0})"); },
               {"shard_size is 0; it must be \"host\" or a whole number from 1"});
  expect_error([] { engine_config(R"({"stage": 0, "shard_size": 2})"); }, {"stage is 0"});
  expect_error([] { engine_config(R"({"shard_size": 2, "secondary_shards": true})"); },
               {"no mode has all", "shard_size = 2: a key of hddp, hsdp1, hsdp2, hsdp3",
                "secondary_shards = true: a key of hpz, qwz, qgz, zeropp"});
}

TEST(EngineInGroups, ReadsTheSizeInAMode) {
  train::Registry registry;
  train::register_all_chapters(registry);
  EXPECT_THAT(registry.options("hsdp3:lookahead=2"), HasSubstr(R"("shard_size": "host")"));
  EXPECT_THAT(registry.options("hsdp3:shard_size=2"), HasSubstr(R"("shard_size": 2)"));
  expect_error([&] { registry.check("engine3:shard_size=2"); },
               {"mode engine3: unknown key 'shard_size'; known keys: ahead_mib",
                "a key of hddp, hsdp1, hsdp2, hsdp3"});
}

}  // namespace
}  // namespace zero::testing
