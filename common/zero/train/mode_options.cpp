#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <sstream>

#include <zero/base/error.hpp>
#include <zero/base/keys.hpp>
#include <zero/base/mapped_file.hpp>
#include <zero/train/mode_options.hpp>
#include <zero/train/overlap_options.hpp>

namespace zero::train {
namespace {

using Json = nlohmann::json;

// Adds "lookahead=2" to `settings`: numbers and true keep their types, anything else is a string.
// Overrides a setting of the file, but refuses to set a key twice.
void add_setting(Json& settings, std::set<std::string>& given, const std::string& text) {
  const std::size_t sign = text.find('=');
  if (sign == std::string::npos || sign == 0) {
    throw Error(fmt::format(
        "'{}' is no setting of a mode; write key=value, and no colon in the value: a folder with "
        "one goes into the file of config=FILE",
        text));
  }
  const std::string key = text.substr(0, sign), value = text.substr(sign + 1);
  if (!given.insert(key).second) {
    throw Error(fmt::format("'{}' is the second value of {}; give one", value, key));
  }
  const Json json = Json::parse(value, nullptr, /*allow_exceptions=*/false);
  settings[key] = json.is_primitive() && !json.is_discarded() ? json : Json(value);
}

std::string contents_of(const std::string& path) {
  return base::read_file(path, fmt::format("the engine configuration '{}'", path));
}

// The rest of `text` after `key`, if it begins with `key`.
std::optional<std::string> after(const std::string& key, const std::string& text) {
  if (text.rfind(key, 0) != 0) return std::nullopt;
  return text.substr(key.size());
}

}  // namespace

ReadOptions read_mode_options(const std::string& text) {
  if (const auto file = after("deepspeed=", text)) {
    const std::string contents = contents_of(*file);
    try {
      return read_deepspeed_options(contents);
    } catch (const Error& error) {
      throw Error(fmt::format("{}: {}", *file, error.what()));
    }
  }
  Json settings = Json::object();
  std::istringstream parts(text);
  std::set<std::string> given;
  bool first = true;
  for (std::string part; std::getline(parts, part, ':'); first = false) {
    if (const auto file = after("config=", part); file && first) {
      settings = base::json_object(contents_of(*file), *file);
    } else {
      add_setting(settings, given, part);
    }
  }
  return {settings.dump(), {}};
}

std::string merged(const std::string& first, const std::string& second) {
  Json all = base::json_object(first, "the options");
  all.update(base::json_object(second, "the options"));
  return all.dump();
}

namespace {

// A block that says where states are. `host`: what its device "cpu" is here; "none": nothing.
void read_offload(base::Keys& block, const char* key, const std::string& host, std::string& place,
                  std::vector<std::string>& notes) {
  block.field(key, [=, &block, &place, &notes](const Json& value) {
    const auto entry = [&value](const char* name) {
      return value.is_object() && value.contains(name) ? value[name] : Json();
    };
    const Json device = entry("device");
    if (value.is_null() || device == "none") return;
    const bool is_host = device == "cpu";
    const Json chosen = is_host ? Json(host) : entry("nvme_path");
    if ((!is_host && device != "nvme") || !chosen.is_string()) {
      block.refuse(key, value,
                   "left out, or have the device \"cpu\", or \"nvme\" and an nvme_path, a folder");
    }
    place = chosen.get<std::string>();
    notes.push_back(
        place == "none"
            ? fmt::format("{} to \"cpu\" changes nothing: parameters stay on the device", key)
            : fmt::format("of {} only device and nvme_path are read", key));
  });
}

void note_what_makes_no_difference(base::Keys& block, std::vector<std::string>& notes) {
  for (const char* key :
       {"allgather_partitions", "allgather_bucket_size", "reduce_scatter", "round_robin_gradients",
        "sub_group_size", "stage3_max_live_parameters", "stage3_max_reuse_distance",
        "stage3_gather_16bit_weights_on_model_save", "mics_hierarchical_params_gather"}) {
    block.field(key, [key, &notes](const Json&) {
      notes.push_back(fmt::format("{} makes no difference here", key));
    });
  }
  block.field("offload_param",
              [&notes](const Json&) { notes.emplace_back("offload_param is not read"); });
}

// The groups of ranks: those of MiCS or those of ZeRO++, at stage 3.
Json groups(std::int64_t mics, std::int64_t hpz_partition, bool weights, bool gradients) {
  Json groups = Json::object();
  if (mics > 0) groups["shard_size"] = mics;
  if (hpz_partition > 1) {
    groups["secondary_shards"] = true;
    groups["group_size"] = hpz_partition;
  }
  if (weights) groups["quantize_parameters"] = true;
  if (gradients) groups["quantize_gradients"] = true;
  return groups;
}

// The block zero_optimization. Sizes of buckets are in elements.
void read_zero_optimization(const Json& json, std::int64_t element_bytes, Json& options,
                            std::vector<std::string>& notes) {
  OverlapOptions ours{.stage = 0};  // DeepSpeed's own default
  base::Keys own("zero_optimization"), block("zero_optimization", &notes);
  declare(own, ours);
  block.field("stage", [&own](const Json& value) { own.read(Json{{"stage", value}}); });
  std::int64_t bucket_elements = ours.bucket_bytes / element_bytes;
  std::int64_t prefetch = 1, hpz_partition = 1, mics = 0;
  bool weights = false, gradients = false, overlaps = true, contiguous = true;
  block.count("reduce_bucket_size", 1, bucket_elements);
  block.count("stage3_prefetch_bucket_size", 0, prefetch);
  block.count("stage3_param_persistence_threshold", 0, ours.whole_below);
  block.count("zero_hpz_partition_size", 0, hpz_partition);
  const auto is_mics = [](std::int64_t n) { return n >= -1; };
  block.count_if("mics_shard_size", is_mics, "-1 or a whole number from 0", mics);
  block.flag("zero_quantized_weights", weights);
  block.flag("zero_quantized_gradients", gradients);
  block.flag("overlap_comm", overlaps);
  block.flag("contiguous_gradients", contiguous);
  read_offload(block, "offload_optimizer", "host", ours.offload, notes);
  note_what_makes_no_difference(block, notes);
  block.read(json);
  if (!contiguous) {
    notes.emplace_back("contiguous_gradients is false: gradients are contiguous here");
  }
  ours.bucket_bytes = bucket_elements * element_bytes;
  ours.in_flight_bytes = overlaps ? 2 * ours.bucket_bytes : ours.bucket_bytes;
  if (prefetch == 0 || !overlaps) ours.lookahead = 0;
  options.update(base::json_object(own.text(), "the options"));
  const Json of_groups = groups(mics, hpz_partition, weights, gradients);
  if (ours.stage < 3 && !of_groups.empty()) {
    notes.emplace_back(
        "mics_shard_size, zero_hpz_partition_size, zero_quantized_weights and "
        "zero_quantized_gradients make no difference below stage 3");
    return;
  }
  if (mics > 0 && of_groups.size() > 1) {
    throw Error(fmt::format(
        "zero_optimization: mics_shard_size is {}, with which groups of ranks share the model "
        "states; with the keys of ZeRO++ all ranks share them: leave out mics_shard_size or the "
        "keys of ZeRO++",
        mics));
  }
  options.update(of_groups);
}

// What a whole file has beside what is read, and what it lacks.
void note_the_rest(const Json& file, base::Keys& around, std::vector<std::string>& notes) {
  for (const auto& [key, value] : file.items()) {
    if (around.has(key)) continue;
    around.field(key, [&notes, name = key](const Json&) {
      notes.push_back(fmt::format("{} is not read", name));
    });
  }
  if (file.contains("gradient_clipping")) return;
  notes.emplace_back(
      "gradient_clipping is missing: nothing is clipped, where DeepSpeed 0.19.8 clips to a norm of "
      "1");
}

}  // namespace

ReadOptions read_deepspeed_options(const std::string& json) {
  const Json file = base::json_object(json, "the DeepSpeed configuration");
  std::vector<std::string> notes;
  Json options = Json::object();
  if (!file.contains("zero_optimization")) {
    read_zero_optimization(file, /*element_bytes=*/4, options, notes);
    return {options.dump(), notes};
  }
  std::int64_t element_bytes = 4;
  base::Keys around("the DeepSpeed configuration", &notes);
  std::int64_t accumulation_steps = 1;
  double clip_norm = 0;
  around.count("gradient_accumulation_steps", 1, accumulation_steps);
  around.real("gradient_clipping", "a norm, or 0 for no clipping", clip_norm);
  for (const char* dtype : {"fp16", "bf16"}) {
    around.field(dtype, [&, dtype](const Json& value) {
      if (!value.is_object()) around.refuse(dtype, value, "a JSON object");
      if (value.value("enabled", Json()) == true) element_bytes = 2;
      notes.push_back(
          fmt::format("of {} only \"enabled\" is read, for the size of an element: "
                      "the model has its dtype and the engine its loss scale",
                      dtype));
    });
  }
  around.field("activation_checkpointing", [&notes](const Json&) {
    notes.emplace_back(
        "activation_checkpointing is not read: a model's own nn::checkpoint() has on_host for "
        "cpu_checkpointing and partition_over for partition_activations");
  });
  around.field("zero_optimization", [](const Json&) {});
  note_the_rest(file, around, notes);
  around.read(file);
  if (!file["zero_optimization"].is_object()) {
    throw Error("zero_optimization must be a JSON object");
  }
  if (accumulation_steps != 1) options["accumulation_steps"] = accumulation_steps;
  if (clip_norm != 0) options["clip_norm"] = clip_norm;
  read_zero_optimization(file["zero_optimization"], element_bytes, options, notes);
  return {options.dump(), notes};
}

}  // namespace zero::train
