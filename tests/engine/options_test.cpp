// What the engine says of options that cannot be, and of ranks that have others; and which strategy
// the options of groups and of ZeRO++ make it.

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <tests/support/engine_run.hpp>
#include <tests/support/error_of.hpp>
#include <tests/support/ranks.hpp>
#include <tools/ladder/registry.hpp>
#include <zero/engine_config.hpp>
namespace zero::testing {
namespace {

TEST(EngineOptions, ThatCannotBeAreRefusedOnAllRanks) {
  on_ranks(4, [](dist::Communicator& communicator) {
    const auto refused = [&](const EngineConfig& config, const char* why) {
      expect_error([&] { EngineRun(communicator, config); }, {why});
    };
    refused({.stage = 4}, "stage is 4; it must be 0, 1, 2 or 3");
    refused({.bucket_bytes = 0}, "bucket_mib is 0.0");
    refused({.lookahead = -2}, "lookahead is -2");
    refused({.stage = 0, .shard_size = 2}, "stage is 0");
    refused({.shard_size = 3}, "4 is not a multiple of 3");
    refused({.shard_size = -7}, "shard_size is -7");
    refused({.group_size = 3, .secondary_shards = true}, "4 is not a multiple of 3");
    refused({.group_size = 8, .secondary_shards = true}, "must be from 1 to 4");
    refused({.group_size = 0, .secondary_shards = true},
            "group_size is 0; it must be \"host\" or a whole number from 1");
    refused({.shard_size = 2, .secondary_shards = true}, "cannot be together");
    refused({.offload_parameters = "/tmp", .shard_size = 2}, "offload_parameters cannot be with");
    EngineRun(communicator, {}).step(0);  // the ranks still understand each other
  });
}

TEST(EngineOptions, ThatDifferBetweenRanksAreRefused) {
  on_ranks(2, [](dist::Communicator& communicator) {
    const std::vector<std::function<void(EngineConfig&)>> changes = {
        [](EngineConfig& c) { c.secondary_shards = !(c.quantize_parameters = true); },
        [](EngineConfig& c) { c.quantize_parameters = true; },
        [](EngineConfig& c) { c.quantize_gradients = true; },
        [](EngineConfig& c) { c.quantization_block = 2; },
        [](EngineConfig& c) { c.gradient_bits = 8; },
        [](EngineConfig& c) { c.gradient_block = 2; },
        [](EngineConfig& c) { c.group_size = 1; },
        [](EngineConfig& c) { c = {.shard_size = 2}; },
        [](EngineConfig& c) { c = {.stage = 2}; },
        [](EngineConfig& c) { c.bucket_bytes = 1; },
        [](EngineConfig& c) { c.in_flight_bytes = 1; },
        [](EngineConfig& c) { c.lookahead = 7; },
        [](EngineConfig& c) { c.whole_below = 7; },
        [](EngineConfig& c) { c.keep_buffers = false; },
        [](EngineConfig& c) { c.keep_gradients = false; },
        [](EngineConfig& c) { c.defer_parameter_gather = true; },
        [](EngineConfig& c) { c.offload = "host"; },
        [](EngineConfig& c) { c = {.offload_parameters = "/tmp"}; },
        [](EngineConfig& c) { c.offload_tile_bytes = 1 << 12; }};
    for (std::size_t i = 0; i < changes.size(); ++i) {
      EngineConfig config{.secondary_shards = true};
      if (communicator.rank() == 1) changes[i](config);
      SCOPED_TRACE(i);
      expect_error([&] { EngineRun(communicator, config); },
                   {"ranks disagree about the options of the strategy"});
    }
  });
}

// As a file or a command line has them.
TEST(EngineOptions, MakeTheStrategyThatTheyName) {
  const std::vector<std::pair<const char*, const char*>> rows = {
      {"{}", "engine3"},
      {R"({"stage": 2, "shard_size": 4})", "hsdp2"},
      {R"({"stage": 2, "shard_size": "host"})", "hsdp2"},
      {R"({"secondary_shards": true, "group_size": 4})", "hpz"},
      {R"({"quantize_parameters": true, "quantization_block": 512})", "qwz"},
      {R"({"quantize_gradients": true, "gradient_bits": 8, "gradient_block": 128})", "qgz"},
      {R"({"quantize_parameters": true, "secondary_shards": true, "lookahead": 0})", "zeropp"},
      {R"({"secondary_shards": false, "lookahead": 2, "quantize_gradients": true})", "qgz"}};
  for (const auto& [json, mode] : rows) EXPECT_EQ(mode_of(engine_config(json)), mode) << json;
  EXPECT_EQ(engine_config(R"({"shard_size": 4})").shard_size, 4);
  const std::vector<std::pair<const char*, const char*>> wrong = {
      {R"({"shard_size": 0.5})", "shard_size is 0.5; it must be \"host\" or a whole number from 0"},
      {R"({"stage": 0, "shard_size": 2})", "stage is 0"},
      {R"({"shard_size": 2, "secondary_shards": true})",
       "shard_size and the parts of ZeRO++ cannot be together"},
      {R"({"group_size": 0, "secondary_shards": true})",
       "group_size is 0; it must be \"host\" or a whole number from 1"},
      {R"({"group_size": 2})", "no part of ZeRO++ is chosen"},
      {R"({"stage": 2, "secondary_shards": true})", "need stage 3"},
      {R"({"quantize_gradients": true, "gradient_bits": 5})",
       "gradient_bits is 5; it must be 4 or 8"},
      {R"({"quantize_gradients": true, "quantization_block": 33})",
       "quantization_block is 33; it must be an even number"}};
  for (const auto& row : wrong) expect_error([&] { engine_config(row.first); }, {row.second});
}

TEST(EngineOptions, OfAModeMakeNoOtherOne) {
  tools::Registry registry;
  tools::register_all_chapters(registry);
  const auto config = [&](const char* mode) { return registry.config(mode); };
  EXPECT_EQ(config("hsdp3:lookahead=2").shard_size, dist::Mesh::kRanksOfHost);
  EXPECT_EQ(config("hsdp3:shard_size=2").shard_size, 2);
  EXPECT_EQ(config("hddp:shard_size=2").shard_size, 2);
  EXPECT_TRUE(config("hpz:group_size=2").secondary_shards);
  EXPECT_EQ(config("hpz:group_size=2").group_size, 2);
  EXPECT_FALSE(config("hpz:group_size=2").quantize_gradients);
  EXPECT_EQ(config("qgz:by_rank").group_size, 1);
  EXPECT_TRUE(config("zeropp:quantize_gradients=false").quantize_parameters);
  for (const char* const another :
       {"engine3:shard_size=2", "hsdp3:shard_size=0", "hsdp3:stage=2", "hpz:secondary_shards=false",
        "engine3:secondary_shards=true"}) {
    expect_error([&] { registry.check(another); },
                 {"was asked for, but with these settings it is"});
  }
  expect_error([&] { registry.check("hddp:lookahead=2"); }, {"unknown key 'lookahead'"});
  expect_error([&] { registry.check("hpz:quantize_gradients=true"); }, {"mode hpz was asked for"});
  expect_error([&] { registry.check("hpz:stage=2"); }, {"need stage 3"});
  expect_error([&] { registry.check("hpz:shard_size=2"); }, {"cannot be together"});
}

}  // namespace
}  // namespace zero::testing
