#include "zero/train/checkpoint_manifest.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>
#include <tuple>

#include "zero/data/sha256.hpp"
#include "zero/error.hpp"

namespace zero::train::checkpoint {

using nlohmann::json;

namespace {

constexpr const char* kFormat = "zero checkpoint";
constexpr const char* kChecksum = "sha256 of the rest";

json to_json(const Range& range) { return {range.begin, range.size}; }
json to_json(const std::optional<Range>& range) { return range ? to_json(*range) : json(); }

Range range_from(const json& j) {
  return {j.at(0).get<std::int64_t>(), j.at(1).get<std::int64_t>()};
}
std::optional<Range> optional_range_from(const json& j) {
  return j.is_null() ? std::nullopt : std::optional(range_from(j));
}

json to_json(const CheckpointInfo& info) {
  json j = {{"step", info.step},
            {"mode", info.mode},
            {"random", info.random},
            {"notes", info.notes},
            {"world_size", info.world_size},
            {"optimizer", {{"kind", info.optimizer.kind}, {"groups", info.optimizer.groups}}},
            {"sampler", json()}};
  if (info.sampler) {
    j["sampler"] = {{"seed", info.sampler->seed},
                    {"dataset_size", info.sampler->dataset_size},
                    {"global_batch", info.sampler->global_batch},
                    {"step", info.sampler->step}};
  }
  return j;
}

CheckpointInfo info_from(const json& j) {
  CheckpointInfo info;
  j.at("step").get_to(info.step);
  j.at("mode").get_to(info.mode);
  j.at("random").get_to(info.random);
  j.at("notes").get_to(info.notes);
  j.at("world_size").get_to(info.world_size);
  j.at("optimizer").at("kind").get_to(info.optimizer.kind);
  j.at("optimizer").at("groups").get_to(info.optimizer.groups);
  if (const json& s = j.at("sampler"); !s.is_null()) {
    info.sampler = {s.at("seed").get<std::uint64_t>(), s.at("dataset_size").get<std::int64_t>(),
                    s.at("global_batch").get<std::int64_t>(), s.at("step").get<std::int64_t>()};
  }
  return info;
}

json to_json(const SavedParameter& p) {
  json runs = json::array();
  for (const Run& run : p.runs) runs.push_back({run.rank, run.range.begin, run.range.size});
  return {{"name", p.name},   {"shape", p.shape},   {"dtype", p.dtype},
          {"steps", p.steps}, {"states", p.states}, {"runs", runs}};
}

SavedParameter parameter_from(const json& j) {
  SavedParameter p{j.at("name"), j.at("shape"), j.at("dtype"), j.at("steps"), j.at("states"), {}};
  for (const json& run : j.at("runs")) p.runs.push_back({run.at(0), {run.at(1), run.at(2)}});
  return p;
}

std::string text_of(const json& j) {
  try {
    return j.dump(1) + "\n";
  } catch (const json::exception&) {
    throw Error("a name or the caller's state of generators is not UTF-8: give it as hexadecimal");
  }
}

std::string checksum(const json& rest) { return data::Sha256().add(text_of(rest)).hex(); }

// Sizes and positions of a manifest whose checksum is right, but which some other program wrote.
void check_runs(const SavedParameter& p, const Manifest& manifest, const std::string& path) {
  std::int64_t end = 0;
  for (const Run& run : p.runs) {
    if (run.range.begin != end || run.range.size < 0 || manifest.file_of(run.rank) == nullptr) {
      throw Error(
          fmt::format("{}: the runs of parameter '{}' leave a gap or have no file", path, p.name));
    }
    end += run.range.size;
  }
  if (end != p.elements()) {
    throw Error(
        fmt::format("{}: the runs of parameter '{}' have {} elements, its shape [{}] has {}", path,
                    p.name, end, fmt::join(p.shape, ", "), p.elements()));
  }
}

void check_file_name(const std::string& name, const std::string& path) {
  if (name.empty() || name.front() == '.' || name.find('/') != std::string::npos) {
    throw Error(fmt::format("{}: '{}' is not the name of a file beside it", path, name));
  }
}

std::string kind_of(const std::vector<std::int64_t>& shape, const std::string& dtype) {
  return fmt::format("[{}] {}", fmt::join(shape, ", "), dtype);
}

}  // namespace

Range overlap(const Range& a, const Range& b) {
  const std::int64_t begin = std::max(a.begin, b.begin);
  const std::int64_t end = std::min(a.begin + a.size, b.begin + b.size);
  return {begin, std::max<std::int64_t>(0, end - begin)};
}

std::int64_t SavedParameter::elements() const {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

const SavedFile* Manifest::file_of(int rank) const {
  const auto found = std::find_if(files.begin(), files.end(),
                                  [rank](const SavedFile& file) { return file.rank == rank; });
  return found == files.end() ? nullptr : &*found;
}

void assign_runs(SavedParameter& parameter, const std::vector<Holding>& holdings) {
  const bool updated = std::any_of(holdings.begin(), holdings.end(),
                                   [](const Holding& h) { return h.piece.has_value(); });
  std::vector<Run> candidates;
  for (std::size_t rank = 0; rank < holdings.size(); ++rank) {
    const auto& range = updated ? holdings[rank].piece : holdings[rank].stored;
    if (range) candidates.push_back({static_cast<int>(rank), *range});
  }
  std::sort(candidates.begin(), candidates.end(), [](const Run& a, const Run& b) {
    return std::tuple(a.range.begin, -a.range.size, a.rank) <
           std::tuple(b.range.begin, -b.range.size, b.rank);
  });
  std::int64_t end = 0;
  parameter.runs.clear();
  for (const Run& run : candidates) {
    // A parameter of 0 elements has a run too, because it has a step count.
    if (run.range.begin + run.range.size <= end && !parameter.runs.empty()) continue;
    if (run.range.begin != end) break;
    parameter.runs.push_back(run);
    end += run.range.size;
  }
  if (end != parameter.elements()) {
    throw Error(fmt::format("of parameter '{}' ranks hold {} of {} elements without a gap",
                            parameter.name, end, parameter.elements()));
  }
  if (!updated || parameter.runs.empty()) return;
  const Holding& first = holdings[static_cast<std::size_t>(parameter.runs.front().rank)];
  parameter.steps = first.steps;
  parameter.states = first.states;
  for (const Run& run : parameter.runs) {
    const Holding& other = holdings[static_cast<std::size_t>(run.rank)];
    if (other.steps != first.steps || other.states != first.states) {
      throw Error(fmt::format("parameter '{}' has had {} updates on rank {} and {} on rank {}",
                              parameter.name, first.steps, parameter.runs.front().rank, other.steps,
                              run.rank));
    }
  }
}

void check_same_model(const Manifest& saved, const std::vector<SavedParameter>& parameters,
                      const std::vector<SavedBuffer>& buffers, bool convert) {
  const auto refuse = [](const std::string& what, const std::string& theirs,
                         const std::string& ours) {
    throw Error(fmt::format("it is of another model: {}, the checkpoint has {}, the model {}", what,
                            theirs, ours));
  };
  for (std::size_t i = 0; i < std::max(saved.parameters.size(), parameters.size()); ++i) {
    const std::string place = fmt::format("parameter {}", i);
    if (i >= parameters.size()) refuse(place, "'" + saved.parameters[i].name + "'", "none");
    const SavedParameter& ours = parameters[i];
    if (i >= saved.parameters.size()) refuse(place, "none", "'" + ours.name + "'");
    const SavedParameter& theirs = saved.parameters[i];
    if (theirs.name != ours.name) refuse(place, "'" + theirs.name + "'", "'" + ours.name + "'");
    if (theirs.shape != ours.shape) {
      refuse("'" + ours.name + "'", kind_of(theirs.shape, theirs.dtype),
             kind_of(ours.shape, ours.dtype));
    }
    if (theirs.dtype != ours.dtype && !convert) {
      throw Error(
          fmt::format("parameter '{}' is {} in the checkpoint and {} in the model; it is "
                      "converted where convert_dtype is set",
                      ours.name, theirs.dtype, ours.dtype));
    }
  }
  for (std::size_t i = 0; i < std::max(saved.buffers.size(), buffers.size()); ++i) {
    const auto describe = [i](const std::vector<SavedBuffer>& all) {
      if (i >= all.size()) return std::string("none");
      return fmt::format("'{}' {}", all[i].name, kind_of(all[i].shape, all[i].dtype));
    };
    const std::string theirs = describe(saved.buffers);
    const std::string ours = describe(buffers);
    if (theirs != ours) refuse(fmt::format("buffer {}", i), theirs, ours);
  }
}

std::string to_text(const std::vector<Holding>& holdings) {
  json all = json::array();
  for (const Holding& h : holdings) {
    all.push_back({to_json(h.piece), to_json(h.stored), h.steps, json(h.states)});
  }
  return all.dump();
}

std::vector<Holding> holdings_from(const std::string& text) {
  std::vector<Holding> holdings;
  for (const json& j : json::parse(text)) {
    holdings.push_back({optional_range_from(j.at(0)), optional_range_from(j.at(1)), j.at(2),
                        j.at(3).get<std::map<std::string, std::string>>()});
  }
  return holdings;
}

std::string to_text(const Manifest& manifest) {
  json j = {{"format", kFormat},           {"version", kVersion},
            {"folder", manifest.folder},   {"run", to_json(manifest.info)},
            {"parameters", json::array()}, {"buffers", json::array()},
            {"files", json::array()}};
  for (const SavedParameter& p : manifest.parameters) j["parameters"].push_back(to_json(p));
  for (const SavedBuffer& b : manifest.buffers) {
    j["buffers"].push_back({{"name", b.name}, {"shape", b.shape}, {"dtype", b.dtype}});
  }
  for (const SavedFile& f : manifest.files) {
    j["files"].push_back(
        {{"rank", f.rank}, {"name", f.name}, {"bytes", f.bytes}, {"sha256", f.sha256}});
  }
  j[kChecksum] = checksum(j);
  return text_of(j);
}

Manifest manifest_from(const std::string& text, const std::string& path) {
  json j = json::parse(text, /*cb=*/nullptr, /*allow_exceptions=*/false);
  if (!j.is_object() || j.value("format", json()) != kFormat) {
    throw Error(fmt::format("{}: is not the manifest of a checkpoint, or was cut short", path));
  }
  if (j.value("version", json()) != kVersion) {
    throw Error(fmt::format("{}: has format version {}, this program reads version {}", path,
                            j.value("version", json()).dump(), kVersion));
  }
  json rest = j;
  rest.erase(kChecksum);
  // Compared as text, so that not even a changed blank goes through.
  if (j.value(kChecksum, json()) != checksum(rest) || text_of(j) != text) {
    throw Error(fmt::format("{}: was altered: its checksum does not fit", path));
  }
  try {
    Manifest manifest{j.at("folder"), info_from(j.at("run")), {}, {}, {}};
    for (const json& f : j.at("files")) {
      manifest.files.push_back({f.at("rank"), f.at("name"), f.at("bytes"), f.at("sha256")});
      check_file_name(manifest.files.back().name, path);
    }
    check_file_name(manifest.folder, path);
    for (const json& p : j.at("parameters")) manifest.parameters.push_back(parameter_from(p));
    for (const json& b : j.at("buffers")) {
      manifest.buffers.push_back({b.at("name"), b.at("shape"), b.at("dtype")});
    }
    for (const SavedParameter& p : manifest.parameters) check_runs(p, manifest, path);
    return manifest;
  } catch (const json::exception& error) {
    throw Error(fmt::format("{}: lacks something, or it has another type: {}", path, error.what()));
  }
}

}  // namespace zero::train::checkpoint
