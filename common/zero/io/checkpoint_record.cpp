#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include <zero/base/error.hpp>
#include <zero/base/json_depth.hpp>
#include <zero/base/sha256.hpp>
#include <zero/io/checkpoint_record.hpp>

// How nlohmann reads and writes the types below: an object with a key for each member.

template <class T>
struct nlohmann::adl_serializer<std::optional<T>> {
  static void to_json(json& j, const std::optional<T>& value) { j = value ? json(*value) : json(); }
  static void from_json(const json& j, std::optional<T>& value) {
    value = j.is_null() ? std::nullopt : std::optional(j.get<T>());
  }
};

namespace zero::optim {
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Optimizer::Settings, kind, groups)
}

namespace zero::io {
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(CheckpointInfo, step, mode, sampler, random, notes, world_size,
                                   optimizer)
}

namespace zero::io::checkpoint {

using nlohmann::json;

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(SavedFile, name, bytes, sha256)

namespace {

constexpr const char* kChecksum = "sha256 of the rest";

std::string text_of(const json& j) {
  try {
    return j.dump(1) + "\n";
  } catch (const json::exception&) {
    throw Error("a name or the caller's state of generators is not UTF-8: give it as hexadecimal");
  }
}

std::string checksum(const json& rest) { return base::Sha256().add(text_of(rest)).hex(); }

void check_name(const std::string& name) {
  if (!name.empty() && name.front() != '.' && name.find('/') == std::string::npos) return;
  throw Error(fmt::format("'{}' is not the name of a file beside it", name));
}

// Throws unless it is a record of this version that nobody has altered.
void verify_own(const json& j, const std::string& text) {
  if (!j.is_object() || j.value("format", json()) != kFormat) {
    throw Error("is not of a checkpoint, or was cut short");
  }
  if (const json version = j.value("version", json()); version != kVersion) {
    throw Error(
        fmt::format("has format version {}, this program reads version {}: load it with "
                    "its own release, and export the weights there (save_model())",
                    version.dump(), kVersion));
  }
  json rest = j;
  rest.erase(kChecksum);
  // Compared as text, so that even a changed blank is refused.
  if (j.value(kChecksum, json()) != checksum(rest) || text_of(j) != text) {
    throw Error("was altered: its checksum does not fit");
  }
}

}  // namespace

void check_info(const CheckpointInfo& info) {
  constexpr std::int64_t kMostSteps = std::int64_t{1} << 48;  // one a microsecond for nine years
  if (info.step >= 0 && info.step <= kMostSteps) return;
  throw Error(fmt::format("the step is {}; it must be from 0 to {}", info.step, kMostSteps));
}

std::string to_text(const Record& record) {
  json j = {{"format", kFormat},
            {"version", kVersion},
            {"folder", record.folder},
            {"files", record.files},
            {"run", record.info}};
  j[kChecksum] = checksum(j);
  return text_of(j);
}

Record record_from(const std::string& text, const std::string& path) {
  const json j = json::parse(text, base::bounded_depth(path), /*allow_exceptions=*/false);
  try {
    verify_own(j, text);
    const Record record{j.at("folder"), j.at("files"), j.at("run")};
    // Some other program may have written it: nlohmann cuts off fractions and wraps numbers that
    // are too large.
    if (to_text(record) != text) {
      throw Error("holds a number that is not whole or does not fit, or something unknown");
    }
    check_info(record.info);
    check_name(record.folder);
    if (record.files.empty()) throw Error("names no file");
    for (const SavedFile& file : record.files) check_name(file.name);
    return record;
  } catch (const json::exception& error) {
    throw Error(fmt::format("{}: lacks something, or it has another type: {}", path, error.what()));
  } catch (const Error& error) {
    throw Error(fmt::format("{}: {}", path, error.what()));
  }
}

}  // namespace zero::io::checkpoint
