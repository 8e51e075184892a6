#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <sstream>

#include <zero/base/error.hpp>
#include <zero/base/keys.hpp>
#include <zero/base/mapped_file.hpp>
#include <zero/train/mode_options.hpp>

namespace zero::train {
namespace {

using Json = nlohmann::json;

constexpr double kMib = 1 << 20;

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

std::string our_options(const DeepSpeedOptions& o) {
  Json options = {{"stage", o.stage}};
  if (o.bucket_elements > 0) {
    const double mib = static_cast<double>(o.bucket_elements) * (o.bf16 || o.fp16 ? 2 : 4) / kMib;
    options.update({{"bucket_mib", mib}, {"in_flight_mib", 2 * mib}});
  }
  if (o.prefetched == 0) options["lookahead"] = 0;
  if (o.device != "none") options["offload"] = o.device == "cpu" ? "host" : o.folder;
  if (o.accumulation_steps != 1) options["accumulation_steps"] = o.accumulation_steps;
  if (o.clip_norm != 0) options["clip_norm"] = o.clip_norm;
  return options.dump();
}

}  // namespace

ReadOptions read_deepspeed_options(const std::string& json) {
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
  return {our_options(options), notes};
}

}  // namespace zero::train
