// The engine's option shard_size, which makes it the strategy of chapter 06.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <tests/support/engine_run.hpp>
#include <tests/support/error_of.hpp>
#include <tests/support/ranks.hpp>
#include <tests/support/same_bits.hpp>
#include <tests/support/test_folder.hpp>
#include <tools/ladder/registry.hpp>
#include <zero/engine_config.hpp>

namespace zero::testing {
namespace {

using ::testing::HasSubstr;

EngineConfig with_groups(int stage, std::int64_t shard_size) {
  return {.stage = stage, .shard_size = shard_size, .clip_norm = 0.5};
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
    const auto alone = trained({.stage = 3, .clip_norm = 0.5});
    EXPECT_TRUE(same_bits(trained(with_groups(3, 4)), alone));
    EXPECT_TRUE(same_bits(trained(with_groups(3, dist::Mesh::kRanksOfHost)), alone));
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
         {with_groups(2, 4), with_groups(1, 1), EngineConfig{.stage = 3}}) {
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
  EXPECT_EQ(engine_config(R"({"shard_size": 4})").shard_size, 4);
  for (const char* const size : {"4", "\"host\""}) {
    EXPECT_EQ(mode_of(engine_config(fmt::format(R"({{"stage": 2, "shard_size": {}}})", size))),
              "hsdp2");
  }
  EXPECT_EQ(mode_of(engine_config("{}")), "engine3");
  expect_error([] { engine_config(R"({"shard_size": 0.5})"); },
               {"shard_size is 0.5; it must be \"host\" or a whole number from 0"});
  expect_error([] { engine_config(R"({"stage": 0, "shard_size": 2})"); }, {"stage is 0"});
  expect_error([] { engine_config(R"({"shard_size": 2, "secondary_shards": true})"); },
               {"shard_size and the parts of ZeRO++ cannot be together"});
}

TEST(EngineInGroups, ReadsTheSizeInAMode) {
  tools::Registry registry;
  tools::register_all_chapters(registry);
  EXPECT_EQ(registry.config("hsdp3:lookahead=2").shard_size, dist::Mesh::kRanksOfHost);
  EXPECT_EQ(registry.config("hsdp3:shard_size=2").shard_size, 2);
  EXPECT_EQ(registry.config("hddp:shard_size=2").shard_size, 2);
  for (const char* const wrong : {"engine3:shard_size=2", "hsdp3:shard_size=0", "hsdp3:stage=2"}) {
    expect_error([&] { registry.check(wrong); }, {"was asked for, but with these settings it is"});
  }
  expect_error([&] { registry.check("hddp:lookahead=2"); }, {"unknown key 'lookahead'"});
}

}  // namespace
}  // namespace zero::testing
