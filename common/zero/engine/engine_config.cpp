#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <sstream>

#include <zero/base/error.hpp>
#include <zero/base/json_depth.hpp>
#include <zero/base/names.hpp>
#include <zero/engine/engine_config.hpp>

namespace zero {
namespace {

using Json = nlohmann::json;

constexpr double kMib = 1 << 20;
constexpr double kMostMib = 1e9;
constexpr double kMostCount = 9e15;  // every whole number up to here is a double

Json parsed(const std::string& text, const char* what) {
  try {
    Json json = Json::parse(text, base::bounded_depth(what));
    if (!json.is_object()) throw Error(fmt::format("{} must be a JSON object", what));
    return json;
  } catch (const Json::exception& error) {
    throw Error(fmt::format("{} is not JSON: {}", what, error.what()));
  }
}

// Reads the fields of one object, each by its own function; refuses all others.
class Reader {
 public:
  /// With `notes`, "auto" is read as a key that is left out, and noted.
  explicit Reader(std::string where, std::vector<std::string>* notes = nullptr)
      : where_(std::move(where)), notes_(notes) {}

  using Take = std::function<void(const Json& value)>;
  void field(const std::string& key, Take take) { fields_[key] = std::move(take); }
  bool has(const std::string& key) const { return fields_.contains(key); }

  void count(const std::string& key, std::int64_t least, std::int64_t& out) {
    field(key, [this, key, least, &out](const Json& value) {
      out = as_count(key, value, least, fmt::format("a whole number from {}", least));
    });
  }

  /// A number of `least` or more, or a word or another number that stands for one.
  void count_or(const std::string& key, const Json& word, std::int64_t meaning, std::int64_t& out,
                std::int64_t least = 0) {
    field(key, [this, key, word, meaning, &out, least](const Json& value) {
      const auto right = fmt::format("{} or a whole number from {}", word.dump(), least);
      out = value == word ? meaning : as_count(key, value, least, right);
    });
  }

  void mib(const std::string& key, std::int64_t& bytes) {
    field(key, [this, key, &bytes](const Json& value) {
      const double number = value.is_number() ? value.get<double>() : 0;
      if (number * kMib < 1 || !(number <= kMostMib)) {
        refuse(key, value, fmt::format("a number of MiB, from one byte to {:g}", kMostMib));
      }
      bytes = static_cast<std::int64_t>(number * kMib);
    });
  }

  void flag(const std::string& key, const std::function<void(bool)>& take) {
    field(key, [this, key, take](const Json& value) {
      if (!value.is_boolean()) refuse(key, value, "true or false");
      take(value.get<bool>());
    });
  }

  void read(const Json& object) const {
    for (const auto& [key, value] : object.items()) {
      const auto found = fields_.find(key);
      if (found == fields_.end()) {
        std::vector<std::string> known;
        for (const auto& field : fields_) known.push_back(field.first);
        throw Error(where_ + ": " + base::unknown_name_message("key", key, known));
      }
      if (notes_ != nullptr && value == "auto") {
        notes_->push_back(fmt::format("{} is \"auto\": it has its default here", key));
      } else {
        found->second(value);
      }
    }
  }

  [[noreturn]] void refuse(const std::string& key, const Json& value,
                           const std::string& right) const {
    throw Error(fmt::format("{}: {} is {}; it must be {}", where_, key, value.dump(), right));
  }

 private:
  std::int64_t as_count(const std::string& key, const Json& value, std::int64_t least,
                        const std::string& right) const {
    // Accept 5e8 as well as 500000000.
    const double number = value.is_number() ? value.get<double>() : -1;
    const bool whole = number == std::floor(number) && number <= kMostCount;
    if (!whole || number < static_cast<double>(least)) {
      refuse(key, value, fmt::format("{} to {:g}", right, kMostCount));
    }
    return static_cast<std::int64_t>(number);
  }

  std::string where_;
  std::vector<std::string>* notes_;
  std::map<std::string, Take> fields_;
};

void take_stage(Reader& reader, int& stage) {
  reader.field("stage", [&reader, &stage](const Json& value) {
    if (!value.is_number_integer() || value < 0 || value > 3) {
      reader.refuse("stage", value, "0, 1, 2 or 3");
    }
    stage = value.get<int>();
  });
}

void take_clip_norm(Reader& reader, const char* key, double& norm) {
  reader.field(key, [&reader, key, &norm](const Json& value) {
    if (!value.is_number() || !(value.get<double>() >= 0)) {
      reader.refuse(key, value, "a norm, or 0 for no clipping");
    }
    norm = value.get<double>();
  });
}

// Keys that say where groups begin and what is quantised.
void take_groups(Reader& reader, OverlapOptions& overlap) {
  for (const auto& [key, size] :
       {std::pair{"shard_size", &overlap.shard_size}, {"group_size", &overlap.group_size}}) {
    reader.count_or(key, "host", kRanksOfHost, *size, /*least=*/1);
  }
  for (const auto& [key, flag] : {std::pair{"secondary_shards", &overlap.secondary_shards},
                                  {"quantize_parameters", &overlap.quantize_parameters},
                                  {"quantize_gradients", &overlap.quantize_gradients}}) {
    reader.flag(key, [flag = flag](bool on) { *flag = on; });
  }
  reader.count("gradient_bits", 4, overlap.gradient_bits);
  reader.count("quantization_block", 2, overlap.quantization_block);
  reader.count("gradient_block", 2, overlap.gradient_block);
}

// Keys that are left out keep their value in `config`.
EngineConfig read_config(EngineConfig config, const std::string& json) {
  Reader reader("engine configuration");
  take_stage(reader, config.overlap.stage);
  reader.mib("bucket_mib", config.overlap.bucket_bytes);
  reader.mib("in_flight_mib", config.overlap.in_flight_bytes);
  reader.count_or("lookahead", "auto", kAutoLookahead, config.overlap.lookahead);
  reader.mib("ahead_mib", config.overlap.ahead_bytes);
  reader.count_or("whole_below", "hybrid", kHybridThreshold, config.overlap.whole_below);
  reader.flag("keep_buffers", [&](bool keep) { config.overlap.keep_buffers = keep; });
  reader.flag("keep_gradients", [&](bool keep) { config.overlap.keep_gradients = keep; });
  reader.flag("defer_parameter_gather",
              [&](bool defer) { config.overlap.defer_parameter_gather = defer; });
  take_groups(reader, config.overlap);
  reader.count("accumulation_steps", 1, config.accumulation_steps);
  reader.flag("reduce_each_micro_batch", [&](bool each) { config.reduce_each_micro_batch = each; });
  take_clip_norm(reader, "clip_norm", config.clip_norm);
  reader.field("on_nonfinite_gradient", [&](const Json& value) {
    using train::OnNonfiniteGradient;
    if (value != "error" && value != "skip") {
      reader.refuse("on_nonfinite_gradient", value, "\"error\" or \"skip\"");
    }
    config.on_nonfinite_gradient =
        value == "skip" ? OnNonfiniteGradient::kSkip : OnNonfiniteGradient::kError;
  });
  reader.flag("reduce_in_float32", [&](bool wide) { config.reduce_in_float32 = wide; });
  reader.field("loss_scale", [&](const Json& value) {
    const double scale = value.is_number() ? value.get<double>() : -1;
    config.loss_scale.initial = scale;
    if (scale == 0) return;
    try {
      train::LossScale{config.loss_scale};
    } catch (const Error&) {
      reader.refuse("loss_scale", value, "0 for none, or a power of two from 1 to 2^100");
    }
  });
  reader.read(parsed(json, "the engine configuration"));
  return config;
}

}  // namespace

EngineConfig engine_config(const std::string& json) { return read_config({}, json); }

namespace {

// Adds "lookahead=2" to `settings`: numbers and true keep their types, anything else is a string.
// Overrides a setting of the file, but refuses to set a key twice.
void add_setting(Json& settings, std::set<std::string>& given, const std::string& text) {
  const std::size_t sign = text.find('=');
  if (sign == std::string::npos || sign == 0) {
    throw Error(fmt::format("'{}' is no setting of the engine; write key=value", text));
  }
  const std::string key = text.substr(0, sign), value = text.substr(sign + 1);
  if (!given.insert(key).second) {
    throw Error(fmt::format("'{}' is the second value of {}; give one", value, key));
  }
  const Json json = Json::parse(value, nullptr, /*allow_exceptions=*/false);
  settings[key] = json.is_primitive() && !json.is_discarded() ? json : Json(value);
}

std::string contents_of(const std::string& path) {
  std::ifstream file(path);
  std::error_code ignored;
  if (!file || std::filesystem::is_directory(path, ignored)) {
    throw Error(fmt::format("the engine configuration '{}' cannot be read", path));
  }
  return {std::istreambuf_iterator<char>(file), {}};
}

// The rest of `text` after `key`, if it begins with `key`.
std::optional<std::string> after(const std::string& key, const std::string& text) {
  if (text.rfind(key, 0) != 0) return std::nullopt;
  return text.substr(key.size());
}

EngineConfig config_from(const OverlapOptions& defaults, const std::string& text,
                         std::vector<std::string>* notes) {
  if (const auto file = after("deepspeed=", text)) {
    const std::string contents = contents_of(*file);
    ReadConfig read;
    try {
      read = engine_config_from_deepspeed(contents);
    } catch (const Error& error) {
      throw Error(fmt::format("{}: {}", *file, error.what()));
    }
    if (notes != nullptr) *notes = std::move(read.notes);
    return read.config;
  }
  Json settings = Json::object();
  std::istringstream parts(text);
  std::set<std::string> given;
  bool first = true;
  for (std::string part; std::getline(parts, part, ':'); first = false) {
    if (const auto file = after("config=", part); file && first) {
      settings = parsed(contents_of(*file), file->c_str());
    } else {
      add_setting(settings, given, part);
    }
  }
  return read_config({.overlap = defaults}, settings.dump());
}

// A mode has no step of its own.
void refuse_options_of_steps(const EngineConfig& config) {
  if (config.accumulation_steps != 1 || config.reduce_each_micro_batch || config.clip_norm != 0 ||
      config.reduce_in_float32 || config.loss_scale.initial != 0 ||
      config.on_nonfinite_gradient != train::OnNonfiniteGradient::kError) {
    throw Error(
        "accumulation_steps, reduce_each_micro_batch, clip_norm, on_nonfinite_gradient, "
        "reduce_in_float32 and loss_scale are for zero::Engine; the trainer of a mode has its own");
  }
}

}  // namespace

OverlapOptions overlap_options(int stage, const std::string& text, std::vector<std::string>* notes,
                               bool has_groups) {
  OverlapOptions defaults;
  defaults.stage = stage;
  EngineConfig config = config_from(defaults, text, notes);
  if (config.overlap.stage != stage) {
    throw Error(fmt::format("stage is {}, but mode {}{} was asked for", config.overlap.stage,
                            has_groups ? "hsdp" : "engine", stage));
  }
  if (has_groups && config.overlap.shard_size == 0) config.overlap.shard_size = kRanksOfHost;
  if (!has_groups && config.overlap.shard_size != 0) {
    throw Error(
        fmt::format("mode engine{} shards over all ranks; shard_size is for hsdp1, hsdp2 "
                    "and hsdp3",
                    stage));
  }
  if (const std::string mode = zero_plus_plus_mode(config.overlap); !mode.empty()) {
    throw Error(fmt::format("options of ZeRO++ are set, but mode {}{} was asked for: take mode {}",
                            has_groups ? "hsdp" : "engine", stage, mode));
  }
  refuse_options_of_steps(config);
  return config.overlap;
}

OverlapOptions zero_plus_plus_options(const OverlapOptions& defaults, const std::string& text) {
  EngineConfig config = config_from(defaults, text, /*notes=*/nullptr);
  refuse_options_of_steps(config);
  const std::string mode = zero_plus_plus_mode(config.overlap);
  if (const std::string asked = zero_plus_plus_mode(defaults); mode != asked) {
    throw Error(fmt::format("the options are those of mode {}, but mode {} was asked for",
                            mode.empty() ? "engine3" : mode, asked));
  }
  return checked(config.overlap);
}

namespace {

void refuse_offload(Reader& block) {
  for (const char* key : {"offload_optimizer", "offload_param"}) {
    block.field(key, [key, &block](const Json& value) {
      const bool off =
          value.is_null() || (value.is_object() && value.value("device", "") == "none");
      if (!off) block.refuse(key, value, "left out: states stay in the memory of their rank here");
    });
  }
}

void note_what_makes_no_difference(Reader& block, std::vector<std::string>& notes) {
  block.flag("contiguous_gradients", [&notes](bool on) {
    if (!on) notes.push_back("contiguous_gradients is false: gradients are contiguous here");
  });
  for (const char* key :
       {"allgather_partitions", "allgather_bucket_size", "reduce_scatter", "round_robin_gradients",
        "sub_group_size", "stage3_max_live_parameters", "stage3_max_reuse_distance",
        "stage3_gather_16bit_weights_on_model_save", "mics_hierarchical_params_gather"}) {
    block.field(key, [key, &notes](const Json&) {
      notes.push_back(fmt::format("{} makes no difference here", key));
    });
  }
}

// The groups of ranks, once the whole block is read: those of MiCS or those of ZeRO++, at stage 3.
void set_groups(std::int64_t hpz_partition, ReadConfig& read) {
  OverlapOptions& overlap = read.config.overlap;
  if (hpz_partition > 1) {
    overlap.secondary_shards = true;
    overlap.group_size = hpz_partition;
  }
  const std::string mode = zero_plus_plus_mode(overlap);
  if (overlap.stage < 3 && overlap.shard_size > 0) {
    overlap.shard_size = 0;
    read.notes.push_back("mics_shard_size makes no difference below stage 3");
  }
  if (overlap.stage < 3 && !mode.empty()) {
    overlap.secondary_shards = overlap.quantize_parameters = overlap.quantize_gradients = false;
    overlap.group_size = kRanksOfHost;
    read.notes.push_back(
        "zero_hpz_partition_size, zero_quantized_weights and zero_quantized_gradients make no "
        "difference below stage 3");
  }
  if (overlap.shard_size > 0 && !mode.empty()) {
    throw Error(
        fmt::format("zero_optimization: mics_shard_size is {}, which is HSDP here, and the other "
                    "keys are those of {} (ZeRO++), under which all ranks share the model states: "
                    "leave out mics_shard_size or the keys of ZeRO++",
                    overlap.shard_size, mode));
  }
}

// The block zero_optimization. Sizes of buckets are in elements.
void read_zero_optimization(const Json& json, std::int64_t element_bytes, ReadConfig& read) {
  OverlapOptions& overlap = read.config.overlap;
  overlap.stage = 0;  // DeepSpeed's own default
  Reader block("zero_optimization", &read.notes);
  take_stage(block, overlap.stage);
  std::int64_t bucket_elements = overlap.bucket_bytes / element_bytes;
  block.count("reduce_bucket_size", 1, bucket_elements);
  std::int64_t prefetch = 1;
  block.count("stage3_prefetch_bucket_size", 0, prefetch);
  block.count("stage3_param_persistence_threshold", 0, overlap.whole_below);
  std::int64_t hpz_partition = 1;
  block.count("zero_hpz_partition_size", 0, hpz_partition);
  block.count_or("mics_shard_size", -1, 0, overlap.shard_size);
  block.flag("zero_quantized_weights", [&](bool on) { overlap.quantize_parameters = on; });
  block.flag("zero_quantized_gradients", [&](bool on) { overlap.quantize_gradients = on; });
  bool overlaps = true;
  block.flag("overlap_comm", [&](bool on) { overlaps = on; });
  refuse_offload(block);
  note_what_makes_no_difference(block, read.notes);
  block.read(json);
  overlap.bucket_bytes = bucket_elements * element_bytes;
  overlap.in_flight_bytes = overlaps ? 2 * overlap.bucket_bytes : overlap.bucket_bytes;
  if (prefetch == 0 || !overlaps) overlap.lookahead = 0;
  set_groups(hpz_partition, read);
}

}  // namespace

ReadConfig engine_config_from_deepspeed(const std::string& json) {
  const Json file = parsed(json, "the DeepSpeed configuration");
  ReadConfig read;
  if (!file.contains("zero_optimization")) {
    read_zero_optimization(file, /*element_bytes=*/4, read);
    return read;
  }
  std::int64_t element_bytes = 4;
  Reader around("the DeepSpeed configuration", &read.notes);
  around.count("gradient_accumulation_steps", 1, read.config.accumulation_steps);
  take_clip_norm(around, "gradient_clipping", read.config.clip_norm);
  for (const char* dtype : {"fp16", "bf16"}) {
    around.field(dtype, [&, dtype](const Json& value) {
      if (!value.is_object()) around.refuse(dtype, value, "a JSON object");
      if (value.value("enabled", Json()) == true) element_bytes = 2;
      read.notes.push_back(
          fmt::format("of {} only \"enabled\" is read, for the size of an element: "
                      "the model has its dtype and the engine its loss scale",
                      dtype));
    });
  }
  around.field("zero_optimization", [](const Json&) {});
  for (const auto& [key, value] : file.items()) {
    if (around.has(key)) continue;
    around.field(key, [&read, name = key](const Json&) {
      read.notes.push_back(fmt::format("{} is not read", name));
    });
  }
  around.read(file);
  if (!file["zero_optimization"].is_object()) {
    throw Error("zero_optimization must be a JSON object");
  }
  read_zero_optimization(file["zero_optimization"], element_bytes, read);
  return read;
}

}  // namespace zero
