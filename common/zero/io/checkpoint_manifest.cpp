#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>

#include <zero/base/error.hpp>
#include <zero/base/json_depth.hpp>
#include <zero/base/sha256.hpp>
#include <zero/io/checkpoint_files.hpp>
#include <zero/io/checkpoint_manifest.hpp>

namespace zero::io::checkpoint {

using nlohmann::json;

namespace {

constexpr const char* kFormat = "zero checkpoint";
constexpr const char* kChecksum = "sha256 of the rest";

// A whole number that T can hold. nlohmann would cut off a fraction and wrap a number that is too
// large.
template <class T>
T whole(const json& j, const char* what) {
  const bool fits = j.is_number_unsigned()
                        ? std::in_range<T>(j.get<std::uint64_t>())
                        : j.is_number_integer() && std::in_range<T>(j.get<std::int64_t>());
  if (fits) return j.get<T>();
  throw Error(fmt::format("{} is {:.40}; it must be a whole number from {} to {}", what, j.dump(),
                          std::numeric_limits<T>::min(), std::numeric_limits<T>::max()));
}

const json::array_t& list(const json& j) { return j.get_ref<const json::array_t&>(); }

std::vector<std::int64_t> shape_from(const json& j) {
  std::vector<std::int64_t> shape;
  for (const json& size : list(j)) shape.push_back(whole<std::int64_t>(size, "a size in a shape"));
  return shape;
}

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
  info.step = whole<std::int64_t>(j.at("step"), "the step");
  j.at("mode").get_to(info.mode);
  j.at("random").get_to(info.random);
  j.at("notes").get_to(info.notes);
  info.world_size = whole<int>(j.at("world_size"), "the world_size");
  j.at("optimizer").at("kind").get_to(info.optimizer.kind);
  j.at("optimizer").at("groups").get_to(info.optimizer.groups);
  if (const json& s = j.at("sampler"); !s.is_null()) {
    info.sampler = {
        whole<std::uint64_t>(s.at("seed"), "the sampler's seed"),
        whole<std::int64_t>(s.at("dataset_size"), "the sampler's dataset_size"),
        whole<std::int64_t>(s.at("global_batch"), "the sampler's global_batch"),
        whole<std::int64_t>(s.at("step"), "the sampler's step"),
    };
  }
  return info;
}

json to_json(const SavedParameter& p) {
  json runs = json::array();
  for (const RankRange& run : p.runs) runs.push_back({run.rank, run.range.begin, run.range.size});
  return {{"name", p.name},   {"shape", p.shape},   {"dtype", p.dtype},
          {"steps", p.steps}, {"states", p.states}, {"runs", runs}};
}

SavedParameter parameter_from(const json& j) {
  SavedParameter p{
      j.at("name"),   shape_from(j.at("shape")),
      j.at("dtype"),  whole<std::int64_t>(j.at("steps"), "the number of steps of a parameter"),
      j.at("states"), {}};
  for (const json& run : list(j.at("runs"))) {
    p.runs.push_back({whole<int>(run.at(0), "the rank of a run"),
                      {whole<std::int64_t>(run.at(1), "the begin of a run"),
                       whole<std::int64_t>(run.at(2), "the size of a run")}});
  }
  return p;
}

Manifest contents_from(const json& j) {
  Manifest manifest{j.at("folder"), info_from(j.at("run")), {}, {}, {}};
  for (const json& f : list(j.at("files"))) {
    manifest.files.push_back({whole<int>(f.at("rank"), "the rank of a file"), f.at("name"),
                              whole<std::int64_t>(f.at("bytes"), "the length of a file"),
                              f.at("sha256")});
  }
  for (const json& p : list(j.at("parameters"))) manifest.parameters.push_back(parameter_from(p));
  for (const json& b : list(j.at("buffers"))) {
    manifest.buffers.push_back({b.at("name"), shape_from(b.at("shape")), b.at("dtype")});
  }
  return manifest;
}

std::string text_of(const json& j) {
  try {
    return j.dump(1) + "\n";
  } catch (const json::exception&) {
    throw Error("a name or the caller's state of generators is not UTF-8: give it as hexadecimal");
  }
}

std::string checksum(const json& rest) { return base::Sha256().add(text_of(rest)).hex(); }

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
  std::vector<RankRange> candidates;
  for (std::size_t rank = 0; rank < holdings.size(); ++rank) {
    const auto& range = updated ? holdings[rank].piece : holdings[rank].stored;
    if (range) candidates.push_back({static_cast<int>(rank), *range});
  }
  std::sort(candidates.begin(), candidates.end(), [](const RankRange& a, const RankRange& b) {
    return std::tuple(a.range.begin, -a.range.size, a.rank) <
           std::tuple(b.range.begin, -b.range.size, b.rank);
  });
  std::int64_t end = 0;
  parameter.runs.clear();
  for (const RankRange& run : candidates) {
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
  for (const RankRange& run : parameter.runs) {
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
  json j = json::parse(text, base::bounded_depth(path), /*allow_exceptions=*/false);
  if (!j.is_object() || j.value("format", json()) != kFormat) {
    throw Error(fmt::format("{}: is not the manifest of a checkpoint, or was cut short", path));
  }
  if (j.value("version", json()) != kVersion) {
    throw Error(fmt::format("{}: has format version {}, this program reads version {}", path,
                            j.value("version", json()).dump(), kVersion));
  }
  json rest = j;
  rest.erase(kChecksum);
  // Compared as text, so that even a changed blank is refused.
  if (j.value(kChecksum, json()) != checksum(rest) || text_of(j) != text) {
    throw Error(fmt::format("{}: was altered: its checksum does not fit", path));
  }
  try {
    // The checksum is right, but some other program may have written it.
    Manifest manifest = contents_from(j);
    check_manifest(manifest);
    return manifest;
  } catch (const json::exception& error) {
    throw Error(fmt::format("{}: lacks something, or it has another type: {}", path, error.what()));
  } catch (const Error& error) {
    throw Error(fmt::format("{}: {}", path, error.what()));
  }
}

namespace {

constexpr std::int64_t kMostSteps = std::int64_t{1} << 48;  // one a microsecond for nine years
constexpr int kMostRanks = 1 << 20;                         // as many as a launcher may start
constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();

void expect_between(const std::string& what, std::int64_t value, std::int64_t least,
                    std::int64_t most) {
  if (value >= least && value <= most) return;
  throw Error(fmt::format("{} is {}; it must be from {} to {}", what, value, least, most));
}

void check_shape(const std::string& what, const std::vector<std::int64_t>& shape) {
  std::int64_t elements = 1;
  for (const std::int64_t size : shape) {
    // A size of 0 counts as 1: the others must not overflow either.
    if (size < 0 || __builtin_mul_overflow(elements, std::max<std::int64_t>(size, 1), &elements)) {
      throw Error(
          fmt::format("{} has the shape [{}]; sizes are 0 or more, and their product fits "
                      "63 bits",
                      what, fmt::join(shape, ", ")));
    }
  }
}

void check_runs(const SavedParameter& p, const Manifest& manifest) {
  std::int64_t end = 0;
  std::set<int> ranks;  // a rank's file has one tensor of each parameter
  for (const RankRange& run : p.runs) {
    if (run.range.begin != end || run.range.size < 0 || run.range.size > kMost - end ||
        manifest.file_of(run.rank) == nullptr || !ranks.insert(run.rank).second) {
      throw Error(
          fmt::format("the runs of parameter '{}' leave a gap, have no file, or are two of "
                      "one rank",
                      p.name));
    }
    end += run.range.size;
  }
  if (end != p.elements()) {
    throw Error(fmt::format("the runs of parameter '{}' have {} elements, its shape [{}] has {}",
                            p.name, end, fmt::join(p.shape, ", "), p.elements()));
  }
}

void check_file_name(const std::string& name) {
  if (name.empty() || name.front() == '.' || name.find('/') != std::string::npos) {
    throw Error(fmt::format("'{}' is not the name of a file beside it", name));
  }
}

void check_file(const SavedFile& file, int world_size) {
  check_file_name(file.name);
  expect_between(fmt::format("the rank of file '{}'", file.name), file.rank, 0, world_size - 1);
  const std::string right = rank_file_name(file.rank, world_size);
  if (file.name != right) {
    throw Error(fmt::format("the file of rank {} of {} is called '{}'; it must be '{}'", file.rank,
                            world_size, file.name, right));
  }
  expect_between(fmt::format("the length of file '{}'", file.name), file.bytes, 0, kMost);
  if (file.sha256.size() != 64 ||
      file.sha256.find_first_not_of("0123456789abcdef") != std::string::npos) {
    throw Error(fmt::format("the SHA-256 of file '{}' is not 64 hexadecimal digits", file.name));
  }
}

void check_files(const Manifest& manifest) {
  int last = -1;
  for (const SavedFile& file : manifest.files) {
    check_file(file, manifest.info.world_size);
    if (file.rank <= last) {
      throw Error(
          fmt::format("the file of rank {} comes after that of rank {}; each rank has one "
                      "at most, in order",
                      file.rank, last));
    }
    last = file.rank;
  }
}

void check_parameters(const Manifest& manifest) {
  std::set<std::string> names;
  for (const SavedParameter& p : manifest.parameters) {
    const std::string what = fmt::format("parameter '{}'", p.name);
    if (!names.insert(p.name).second) throw Error(what + " is there twice");
    check_shape(what, p.shape);
    expect_between("the number of steps of " + what, p.steps, 0, kMostSteps);
    check_runs(p, manifest);
  }
}

void check_buffers(const Manifest& manifest) {
  std::set<std::string> names;
  for (const SavedBuffer& b : manifest.buffers) {
    const std::string what = fmt::format("buffer '{}'", b.name);
    if (!names.insert(b.name).second) throw Error(what + " is there twice");
    check_shape(what, b.shape);
  }
  const auto ranks = static_cast<std::size_t>(manifest.info.world_size);
  if (!manifest.buffers.empty() && manifest.files.size() != ranks) {
    throw Error(
        fmt::format("there are files of {} ranks out of {}, and buffers, which every rank "
                    "saves",
                    manifest.files.size(), ranks));
  }
}

}  // namespace

void check_info(const CheckpointInfo& info) {
  expect_between("the step", info.step, 0, kMostSteps);
  if (!info.sampler) return;
  const data::DistributedSampler::State& sampler = *info.sampler;
  expect_between("the sampler's step", sampler.step, 0, kMostSteps);
  expect_between("the sampler's dataset_size", sampler.dataset_size, 1, kMost);
  expect_between("the sampler's global_batch", sampler.global_batch, 1, sampler.dataset_size);
}

void check_manifest(const Manifest& manifest) {
  check_info(manifest.info);
  expect_between("the world_size", manifest.info.world_size, 1, kMostRanks);
  check_file_name(manifest.folder);
  check_files(manifest);
  check_parameters(manifest);
  check_buffers(manifest);
}

}  // namespace zero::io::checkpoint
