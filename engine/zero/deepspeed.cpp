#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include <zero/base/keys.hpp>
#include <zero/engine_config.hpp>

namespace zero {

namespace {

using Json = nlohmann::json;

constexpr const char* kDeepSpeed = "the DeepSpeed configuration";

// The values of an object by their paths, such as "zero_optimization.stage"; null says nothing.
void add_paths(Json& values, const std::string& path, const Json& object) {
  for (const auto& [key, value] : object.items()) {
    if (value.is_object() && !value.empty()) {
      add_paths(values, path + key + ".", value);
    } else if (!value.is_null()) {
      values[path + key] = value;
    }
  }
}

// What is read of a configuration for DeepSpeed, and its defaults there.
struct DeepSpeedOptions {
  std::int64_t stage = 0;
  std::int64_t bucket_elements = 0;  // 0: not said
  std::int64_t prefetched = 1;
  std::string device = "none", folder;
  std::int64_t accumulation_steps = 1;
  double clip_norm = 0;
  bool bf16 = false, fp16 = false;
};

void declare(base::Keys& keys, DeepSpeedOptions& o) {
  const auto text = [&keys](const std::string& key, const char* right, std::string& out) {
    keys.field(key, [&keys, key, right, &out](const Json& value) {
      if (!value.is_string()) keys.refuse(key, value, right);
      out = value.get<std::string>();
    });
  };
  const std::string zero = "zero_optimization", offload = zero + ".offload_optimizer";
  for (const std::string& block : {zero, offload, std::string("bf16"), std::string("fp16")}) {
    keys.field(block, [&keys, block](const Json& value) {
      if (!value.is_object()) keys.refuse(block, value, "a JSON object");
    });
  }
  keys.count_if(
      zero + ".stage", [](std::int64_t n) { return n >= 0 && n <= 3; }, "0, 1, 2 or 3", o.stage);
  keys.count(zero + ".reduce_bucket_size", 1, o.bucket_elements);
  keys.count(zero + ".stage3_prefetch_bucket_size", 0, o.prefetched);
  text(offload + ".device", "\"none\", \"cpu\" or \"nvme\"", o.device);
  text(offload + ".nvme_path", "a folder", o.folder);
  keys.count("gradient_accumulation_steps", 1, o.accumulation_steps);
  keys.real("gradient_clipping", "a norm, or 0 for no clipping", o.clip_norm);
  keys.flag("bf16.enabled", o.bf16);
  keys.flag("fp16.enabled", o.fp16);
  keys.require(
      [&o] {
        return o.device == "none" || o.device == "cpu" || (o.device == "nvme" && !o.folder.empty());
      },
      offload + " must have the device \"none\", \"cpu\", or \"nvme\" and an nvme_path, a folder");
}

EngineConfig translated(const DeepSpeedOptions& o) {
  EngineConfig config{
      .stage = o.stage, .accumulation_steps = o.accumulation_steps, .clip_norm = o.clip_norm};
  if (o.bucket_elements > 0) {
    config.bucket_bytes = o.bucket_elements * (o.bf16 || o.fp16 ? 2 : 4);
    config.in_flight_bytes = 2 * config.bucket_bytes;
  }
  if (o.prefetched == 0) config.lookahead = 0;
  if (o.device != "none") config.offload = o.device == "cpu" ? "host" : o.folder;
  return config;
}

}  // namespace

ReadConfig engine_config_from_deepspeed(const std::string& json) {
  Json values = Json::object(), read = Json::object();
  add_paths(values, "", base::json_object(json, kDeepSpeed));
  DeepSpeedOptions options;
  base::Keys keys(kDeepSpeed);
  declare(keys, options);
  std::vector<std::string> ignored, notes;
  for (const auto& [path, value] : values.items()) {
    if (keys.has(path) && value != "auto") {
      read[path] = value;
    } else {
      ignored.push_back(path);
    }
  }
  keys.read(read);
  if (!ignored.empty()) {
    notes.push_back(fmt::format("ignored of {}: {}", kDeepSpeed, fmt::join(ignored, ", ")));
  }
  if (!values.contains("gradient_clipping")) {
    notes.emplace_back(
        "gradient_clipping is missing: nothing is clipped, where DeepSpeed 0.19.8 clips to a norm "
        "of 1");
  }
  return {translated(options), notes};
}

}  // namespace zero
