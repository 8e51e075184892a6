// What the engine says of options that cannot be, and of ranks that have others.
#include <functional>

#include <tests/support/engine_run.hpp>
#include <tests/support/error_of.hpp>
#include <tests/support/ranks.hpp>

namespace zero::testing {
namespace {

TEST(EngineOptions, ThatCannotBeAreRefusedOnAllRanks) {
  on_ranks(2, [](dist::Communicator& communicator) {
    const auto refused = [&](const EngineConfig& config, const char* why) {
      expect_error([&] { EngineRun(communicator, config); }, {why});
    };
    refused({.stage = 4}, "stage is 4; it must be 0, 1, 2 or 3");
    refused({.bucket_bytes = 0}, "bucket_mib is 0.0");
    refused({.lookahead = -2}, "lookahead is -2");
    refused({.stage = 0, .shard_size = 2}, "stage is 0");
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
        [](EngineConfig& c) { c.ahead_bytes = 7; },
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

}  // namespace
}  // namespace zero::testing
