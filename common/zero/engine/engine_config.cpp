#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include <zero/base/error.hpp>
#include <zero/base/keys.hpp>
#include <zero/base/names.hpp>
#include <zero/engine/engine_config.hpp>
#include <zero/train/mode_options.hpp>
#include <zero/train/registry.hpp>

namespace zero {
namespace {

using Json = nlohmann::json;

constexpr const char* kWhere = "engine configuration";

// What is the engine's own, whatever the mode.
void declare(base::Keys& keys, EngineConfig& config) {
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

std::string given_options(const EngineConfig& config) {
  return train::merged(base::text_of(config.overlap), config.more);
}

void verify_known(const std::string& key, const base::Keys& own, const train::Registry& registry) {
  std::vector<std::string> known = own.names();
  const std::vector<std::string> of_modes = registry.keys();
  known.insert(known.end(), of_modes.begin(), of_modes.end());
  if (std::ranges::find(known, key) != known.end()) return;
  std::ranges::sort(known);
  throw Error(fmt::format("{}: {}", kWhere, base::unknown_name_message("key", key, known)));
}

}  // namespace

EngineConfig engine_config(const std::string& json) {
  train::Registry registry;
  train::register_all_chapters(registry);
  EngineConfig config;
  base::Keys own(kWhere), overlap(kWhere);
  declare(own, config);
  declare(overlap, config.overlap);
  Json mine = Json::object(), of_overlap = Json::object(), more = Json::object();
  const Json file = base::json_object(json, "the engine configuration");
  for (const auto& [key, value] : file.items()) {
    verify_known(key, own, registry);
    (own.has(key) ? mine : overlap.has(key) ? of_overlap : more)[key] = value;
  }
  own.read(mine);
  overlap.read(of_overlap);
  config.more = more.dump();
  mode_of(config);  // throws if there is none
  return config;
}

std::string mode_options(const EngineConfig& config) {
  train::Registry registry;
  train::register_all_chapters(registry);
  return registry.completed(given_options(config));
}

std::string mode_of(const EngineConfig& config) {
  train::Registry registry;
  train::register_all_chapters(registry);
  return registry.mode_of(given_options(config));
}

ReadConfig engine_config_from_deepspeed(const std::string& json) {
  train::ReadOptions read = train::read_deepspeed_options(json);
  return {engine_config(read.text), std::move(read.notes)};
}

}  // namespace zero
