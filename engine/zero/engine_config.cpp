#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include <06_hsdp/hsdp.hpp>
#include <10_offload/offloaded.hpp>
#include <10_offload/parameters_in_file.hpp>
#include <zero/base/error.hpp>
#include <zero/distributed/agreement.hpp>
#include <zero/engine_config.hpp>

namespace zero {

namespace {

using Json = nlohmann::json;

int parts_of_zero_plus_plus(const EngineConfig& c) {
  return int{c.secondary_shards} + int{c.quantize_parameters} + int{c.quantize_gradients};
}

bool has_defaults_of_zero_plus_plus(const EngineConfig& c) {
  const ZeroPlusPlusOptions defaults;
  return c.group_size == defaults.group_size && c.gradient_bits == defaults.gradient_bits &&
         c.quantization_block == defaults.quantization_block &&
         c.gradient_block == defaults.gradient_block;
}

void declare_zero_plus_plus(base::Keys& keys, EngineConfig& c) {
  keys.count_or("group_size", "host", dist::Mesh::kRanksOfHost, c.group_size, /*least=*/1);
  keys.flag("secondary_shards", c.secondary_shards);
  keys.flag("quantize_parameters", c.quantize_parameters);
  keys.flag("quantize_gradients", c.quantize_gradients);
  keys.count_if(
      "gradient_bits", [](std::int64_t n) { return n == 4 || n == 8; }, "4 or 8", c.gradient_bits);
  const auto is_even = [](std::int64_t n) { return n >= 2 && n % 2 == 0; };
  keys.count_if("quantization_block", is_even, "an even number from 2", c.quantization_block);
  keys.count_if("gradient_block", is_even, "an even number from 2", c.gradient_block);
  keys.require([&c] { return parts_of_zero_plus_plus(c) == 0 || c.stage == 3; },
               "the options of ZeRO++ need stage 3");
  keys.require([&c] { return parts_of_zero_plus_plus(c) > 0 || has_defaults_of_zero_plus_plus(c); },
               "no part of ZeRO++ is chosen: set secondary_shards, quantize_parameters or "
               "quantize_gradients, or leave the other options of ZeRO++ out");
}

void declare_offload(base::Keys& keys, EngineConfig& c) {
  const auto place = [&keys](const std::string& key, const char* right, std::string& out) {
    keys.field(
        key,
        [&keys, key, right, &out](const Json& value) {
          if (!value.is_string() || value == "") keys.refuse(key, value, right);
          out = value.get<std::string>();
        },
        [&out] { return Json(out); });
  };
  place("offload", "\"none\", \"host\", or a folder for optimizer states", c.offload);
  keys.mib("offload_tile_mib", c.offload_tile_bytes);
  place("offload_parameters", "\"none\", or a folder for parameters", c.offload_parameters);
  keys.require(
      [&c] {
        return c.offload_parameters == "none" ||
               (c.shard_size == 0 && parts_of_zero_plus_plus(c) == 0);
      },
      "offload_parameters cannot be with a shard_size or a part of ZeRO++, whose gathers read "
      "shards in memory: leave one of them out");
}

}  // namespace

void declare_strategy(base::Keys& keys, EngineConfig& c) {
  keys.count_if(
      "stage", [](std::int64_t n) { return 0 <= n && n <= 3; }, "0, 1, 2 or 3", c.stage);
  keys.mib("bucket_mib", c.bucket_bytes);
  keys.mib("in_flight_mib", c.in_flight_bytes);
  keys.count("lookahead", 0, c.lookahead);
  keys.count("whole_below", 0, c.whole_below);
  keys.flag("keep_buffers", c.keep_buffers);
  keys.flag("keep_gradients", c.keep_gradients);
  keys.flag("defer_parameter_gather", c.defer_parameter_gather);
  declare_offload(keys, c);
  keys.count_or("shard_size", "host", dist::Mesh::kRanksOfHost, c.shard_size);
  keys.require([&c] { return c.shard_size == 0 || c.stage > 0; },
               "stage is 0; with a shard_size something must be sharded: take 1, 2 or 3");
  declare_zero_plus_plus(keys, c);
  keys.require([&c] { return c.shard_size == 0 || parts_of_zero_plus_plus(c) == 0; },
               "shard_size and the parts of ZeRO++ cannot be together: ZeRO++ shards over all "
               "ranks, and its groups have group_size ranks");
}

void declare(base::Keys& keys, EngineConfig& config) {
  declare_strategy(keys, config);
  keys.count("accumulation_steps", 1, config.accumulation_steps);
  keys.flag("reduce_each_micro_batch", config.reduce_each_micro_batch);
  keys.real("clip_norm", "a norm, or 0 for no clipping", config.clip_norm);
  keys.field("on_nonfinite_gradient", [&](const Json& value) {
    using train::OnNonfiniteGradient;
    if (value != "error" && value != "skip") {
      keys.refuse("on_nonfinite_gradient", value, "\"error\" or \"skip\"");
    }
    config.on_nonfinite_gradient =
        value == "skip" ? OnNonfiniteGradient::kSkip : OnNonfiniteGradient::kError;
  });
  keys.flag("reduce_in_float32", config.reduce_in_float32);
  keys.flag("broadcast_buffers", config.broadcast_buffers);
  keys.field("loss_scale", [&](const Json& value) {
    const double scale = value.is_number() ? value.get<double>() : -1;
    config.loss_scale.initial = scale;
    if (scale == 0) return;
    try {
      train::LossScale{config.loss_scale};
    } catch (const Error&) {
      keys.refuse("loss_scale", value, "0 for none, or a power of two from 1 to 2^100");
    }
  });
}

ShardingOptions sharding_options(const EngineConfig& c) {
  return {.stage = c.stage,
          .bucket_bytes = c.bucket_bytes,
          .in_flight_bytes = c.in_flight_bytes,
          .lookahead = c.lookahead,
          .whole_below = c.whole_below,
          .keep_buffers = c.keep_buffers,
          .keep_gradients = c.keep_gradients,
          .defer_parameter_gather = c.defer_parameter_gather};
}

ZeroPlusPlusOptions zero_plus_plus_options(const EngineConfig& c) {
  return {.group_size = c.group_size,
          .secondary_shards = c.secondary_shards,
          .quantize_parameters = c.quantize_parameters,
          .quantize_gradients = c.quantize_gradients,
          .gradient_bits = c.gradient_bits,
          .quantization_block = c.quantization_block,
          .gradient_block = c.gradient_block};
}

EngineConfig engine_config(const std::string& json) {
  return base::options_from<EngineConfig>(json, "the engine configuration");
}

std::string mode_of(const EngineConfig& c) {
  if (c.shard_size != 0) return fmt::format("hsdp{}", c.stage);
  if (parts_of_zero_plus_plus(c) > 1) return "zeropp";
  if (c.secondary_shards) return "hpz";
  if (c.quantize_parameters) return "qwz";
  if (c.quantize_gradients) return "qgz";
  return fmt::format("engine{}", c.stage);
}

std::unique_ptr<train::Strategy> make_strategy(train::StrategyArguments arguments,
                                               const EngineConfig& config) {
  base::Keys keys("the engine configuration");
  EngineConfig checked = config;
  declare_strategy(keys, checked);
  const std::string text = keys.text();
  dist::verify_same(arguments.mesh.world(), "the options of the strategy", text);
  keys.read(text);  // what cannot be throws
  if (arguments.mode.empty()) arguments.mode = mode_of(config);
  if (config.offload != "none") {
    arguments.optimizer = optim::with_offload(
        std::move(arguments.optimizer), {.folder = config.offload == "host" ? "" : config.offload,
                                         .tile_bytes = config.offload_tile_bytes,
                                         .says_how = arguments.mesh.world().rank() == 0});
  }
  const ShardingOptions overlap = sharding_options(config);
  if (config.offload_parameters != "none") {
    return make_parameters_in_file(arguments, overlap,
                                   {.folder = config.offload_parameters,
                                    .tile_bytes = 0,
                                    .says_how = arguments.mesh.world().rank() == 0});
  }
  if (config.shard_size != 0) return make_hsdp(arguments, overlap, config.shard_size);
  if (parts_of_zero_plus_plus(config) > 0) {
    return make_zero_plus_plus(arguments, overlap, zero_plus_plus_options(config));
  }
  return std::make_unique<ShardedDataParallel>(arguments, overlap);
}

}  // namespace zero
