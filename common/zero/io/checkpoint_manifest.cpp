#include <c10/util/accumulate.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include <zero/base/error.hpp>
#include <zero/base/json_depth.hpp>
#include <zero/base/sha256.hpp>
#include <zero/io/checkpoint_files.hpp>
#include <zero/io/checkpoint_manifest.hpp>
#include <zero/nn/tensor_placement.hpp>

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

// The part, and how a parameter is cut, are there only if it is.
static void to_json(json& j, const RankRange& run) {
  j = {run.rank, run.range.begin, run.range.size};
  if (run.part != 0) j.push_back(run.part);
}
static void from_json(const json& j, RankRange& run) {
  run = {j.at(0), {j.at(1), j.at(2)}, j.size() > 3 ? j.at(3).get<int>() : 0};
}

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Range, begin, size)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Cut, dim, parts)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Holding, piece, stored, steps, states, part)

static void to_json(json& j, const SavedParameter& p) {
  j = {{"name", p.name},   {"shape", p.shape},   {"dtype", p.dtype},
       {"steps", p.steps}, {"states", p.states}, {"runs", p.runs}};
  if (p.cut != Cut()) j["cut"] = p.cut;
}
static void from_json(const json& j, SavedParameter& p) {
  p = {j.at("name"),   j.at("shape"), j.at("dtype"),        j.at("steps"),
       j.at("states"), j.at("runs"),  j.value("cut", Cut())};
}

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(SavedBuffer, name, shape, dtype)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(SavedFile, rank, name, bytes, sha256)

namespace {

constexpr const char* kFormat = "zero checkpoint";
constexpr const char* kChecksum = "sha256 of the rest";

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

std::int64_t SavedParameter::elements() const { return c10::multiply_integers(shape); }

void for_each_common(
    const std::vector<std::int64_t>& shape, const Cut& cut_a, int part_a, const Range& a,
    const Cut& cut_b, int part_b, const Range& b,
    const std::function<void(std::int64_t, std::int64_t, std::int64_t)>& function) {
  if (a.size == 0 || b.size == 0) return;
  if (cut_a == cut_b) {
    const Range common = overlap(a, b);
    if (part_a == part_b && common.size > 0) function(common.begin, common.begin, common.size);
    return;
  }
  const nn::PartRuns runs_a(shape, cut_a.dim, cut_a.parts), runs_b(shape, cut_b.dim, cut_b.parts);
  // Run by run of `a`; of each, the runs of `b` that lie in the same elements of the whole.
  for (std::int64_t o = a.begin / runs_a.run; o * runs_a.run < a.begin + a.size; ++o) {
    const Range in_a = overlap(a, {o * runs_a.run, runs_a.run});
    const std::int64_t shift_a = o * runs_a.whole_run + part_a * runs_a.run - o * runs_a.run;
    const Range whole_a{in_a.begin + shift_a, in_a.size};
    const std::int64_t last = (whole_a.begin + whole_a.size - 1) / runs_b.whole_run;
    for (std::int64_t q = whole_a.begin / runs_b.whole_run; q <= last; ++q) {
      const Range in_b = overlap(b, {q * runs_b.run, runs_b.run});
      const std::int64_t shift_b = q * runs_b.whole_run + part_b * runs_b.run - q * runs_b.run;
      const Range common = overlap(whole_a, {in_b.begin + shift_b, in_b.size});
      if (common.size > 0) function(common.begin - shift_a, common.begin - shift_b, common.size);
    }
  }
}

void assign_runs(SavedParameter& parameter, const std::vector<Holding>& holdings) {
  const bool updated =
      std::ranges::any_of(holdings, [](const Holding& h) { return h.piece.has_value(); });
  std::vector<RankRange> candidates;
  for (std::size_t rank = 0; rank < holdings.size(); ++rank) {
    const auto& range = updated ? holdings[rank].piece : holdings[rank].stored;
    if (range) candidates.push_back({static_cast<int>(rank), *range, holdings[rank].part});
  }
  std::ranges::sort(candidates, {}, [](const RankRange& run) {
    return std::tuple(run.part, run.range.begin, -run.range.size, run.rank);
  });
  const std::int64_t of_part = parameter.elements() / parameter.cut.parts;
  std::int64_t end = 0;  // as if the parts followed each other
  parameter.runs.clear();
  for (const RankRange& run : candidates) {
    const std::int64_t begin = run.part * of_part + run.range.begin;
    // A parameter of 0 elements has a run too, because it has a step count.
    if (begin + run.range.size <= end && !parameter.runs.empty()) continue;
    if (begin != end) break;
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
  const auto compare = [](const std::string& what, const std::string& theirs,
                          const std::string& ours) {
    if (theirs == ours) return;
    throw Error(fmt::format("it is of another model: {}, the checkpoint has {}, the model {}", what,
                            theirs, ours));
  };
  const auto name_at = [](const auto& all, std::size_t i) {
    return i < all.size() ? "'" + all[i].name + "'" : "none";
  };
  for (std::size_t i = 0; i < std::max(saved.parameters.size(), parameters.size()); ++i) {
    compare(fmt::format("parameter {}", i), name_at(saved.parameters, i), name_at(parameters, i));
    const SavedParameter& theirs = saved.parameters[i];
    const SavedParameter& ours = parameters[i];
    if (theirs.shape != ours.shape) {
      compare("'" + ours.name + "'", kind_of(theirs.shape, theirs.dtype),
              kind_of(ours.shape, ours.dtype));
    }
    if (theirs.dtype != ours.dtype && !convert) {
      throw Error(
          fmt::format("parameter '{}' is {} in the checkpoint and {} in the model; it is "
                      "converted if convert_dtype is set",
                      ours.name, theirs.dtype, ours.dtype));
    }
  }
  for (std::size_t i = 0; i < std::max(saved.buffers.size(), buffers.size()); ++i) {
    const std::string what = fmt::format("buffer {}", i);
    compare(what, name_at(saved.buffers, i), name_at(buffers, i));
    compare(what, kind_of(saved.buffers[i].shape, saved.buffers[i].dtype),
            kind_of(buffers[i].shape, buffers[i].dtype));
  }
}

std::string to_text(const std::vector<Holding>& holdings) { return json(holdings).dump(); }

std::vector<Holding> holdings_from(const std::string& text) { return json::parse(text); }

static int version_of(const Manifest& manifest) {
  const auto is_cut = [](const SavedParameter& p) { return p.cut != Cut(); };
  return std::ranges::any_of(manifest.parameters, is_cut) ? kCutVersion : kVersion;
}

std::string to_text(const Manifest& manifest) {
  json j = {
      {"format", kFormat},      {"version", version_of(manifest)},   {"folder", manifest.folder},
      {"run", manifest.info},   {"parameters", manifest.parameters}, {"buffers", manifest.buffers},
      {"files", manifest.files}};
  j[kChecksum] = checksum(j);
  return text_of(j);
}

Manifest manifest_from(const std::string& text, const std::string& path) {
  const auto refuse = [&](const std::string& why) { throw Error(path + ": " + why); };
  json j = json::parse(text, base::bounded_depth(path), /*allow_exceptions=*/false);
  if (!j.is_object() || j.value("format", json()) != kFormat) {
    refuse("is not the manifest of a checkpoint, or was cut short");
  }
  const json version = j.value("version", json());
  if (version != kVersion && version != kCutVersion) {
    refuse(fmt::format("has format version {}, this program reads version {} and {}",
                       version.dump(), kVersion, kCutVersion));
  }
  json rest = j;
  rest.erase(kChecksum);
  // Compared as text, so that even a changed blank is refused.
  if (j.value(kChecksum, json()) != checksum(rest) || text_of(j) != text) {
    refuse("was altered: its checksum does not fit");
  }
  // The checksum is right, but some other program may have written it.
  Manifest manifest;
  try {
    manifest = {j.at("folder"), j.at("run"), j.at("parameters"), j.at("buffers"), j.at("files")};
    if (version != version_of(manifest)) {
      refuse(fmt::format("has format version {}, this program reads version {} of such parameters",
                         version.dump(), version_of(manifest)));
    }
    // nlohmann cuts off fractions and wraps numbers that are too large.
    if (to_text(manifest) != text) {
      refuse("holds a number that is not whole or does not fit, or something unknown");
    }
  } catch (const json::exception& error) {
    refuse(fmt::format("lacks something, or it has another type: {}", error.what()));
  }
  try {
    check_manifest(manifest);
  } catch (const Error& error) {
    refuse(error.what());
  }
  return manifest;
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

// `known`: the tensors before it.
void check_tensor(const std::string& what, const std::vector<std::int64_t>& shape,
                  std::set<std::string>& known) {
  if (!known.insert(what).second) throw Error(what + " is there twice");
  std::int64_t elements = 1;
  for (const std::int64_t size : shape) {
    // A size of 0 counts as 1: the others must not overflow either.
    if (size < 0 || __builtin_mul_overflow(elements, std::max<std::int64_t>(size, 1), &elements)) {
      throw Error(
          fmt::format("{} has the shape [{}]; sizes are 0 or more, and their product fits 63 bits",
                      what, fmt::join(shape, ", ")));
    }
  }
}

void check_cut(const SavedParameter& p) {
  if (p.cut == Cut()) return;
  const bool has_dim = p.cut.dim >= 0 && p.cut.dim < std::ssize(p.shape);
  if (has_dim && p.cut.parts > 0 && p.cut.parts <= kMostRanks &&
      p.shape[static_cast<std::size_t>(p.cut.dim)] % p.cut.parts == 0) {
    return;
  }
  throw Error(
      fmt::format("parameter '{}' [{}] cannot be cut into {} equal parts along dimension {}",
                  p.name, fmt::join(p.shape, ", "), p.cut.parts, p.cut.dim));
}

void check_runs(const SavedParameter& p, const Manifest& manifest) {
  const std::int64_t of_part = p.elements() / p.cut.parts;
  std::int64_t end = 0;  // as if the parts followed each other
  std::set<int> ranks;   // a rank's file has one tensor of each parameter
  for (const RankRange& run : p.runs) {
    const bool has_part = run.part >= 0 && run.part < p.cut.parts && run.range.begin >= 0 &&
                          run.range.size >= 0 && run.range.begin <= of_part &&
                          run.range.size <= of_part - run.range.begin;
    if (!has_part || run.part * of_part + run.range.begin != end ||
        std::ranges::count(manifest.files, run.rank, &SavedFile::rank) == 0 ||
        !ranks.insert(run.rank).second) {
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

void check_files(const Manifest& manifest) {
  const int world_size = manifest.info.world_size;
  int last = -1;
  for (const SavedFile& file : manifest.files) {
    expect_between(fmt::format("the rank of file '{}'", file.name), file.rank, 0, world_size - 1);
    const std::string right = rank_file_name(file.rank, world_size);
    if (file.name != right) {
      throw Error(fmt::format("the file of rank {} of {} is called '{}'; it must be '{}'",
                              file.rank, world_size, file.name, right));
    }
    expect_between(fmt::format("the length of file '{}'", file.name), file.bytes, 0, kMost);
    if (file.rank <= last) {
      throw Error(
          fmt::format("the file of rank {} comes after that of rank {}; each rank has one "
                      "at most, in order",
                      file.rank, last));
    }
    last = file.rank;
  }
  if (!manifest.buffers.empty() && std::ssize(manifest.files) != world_size) {
    throw Error(
        fmt::format("there are files of {} ranks out of {}, and buffers, which every rank saves",
                    manifest.files.size(), world_size));
  }
}

}  // namespace

void check_info(const CheckpointInfo& info) {
  expect_between("the step", info.step, 0, kMostSteps);
}

void check_manifest(const Manifest& manifest) {
  check_info(manifest.info);
  expect_between("the world_size", manifest.info.world_size, 1, kMostRanks);
  const std::string& folder = manifest.folder;
  if (folder.empty() || folder.front() == '.' || folder.find('/') != std::string::npos) {
    throw Error(fmt::format("'{}' is not the name of a file beside it", folder));
  }
  check_files(manifest);
  std::set<std::string> known;
  for (const SavedParameter& p : manifest.parameters) {
    const std::string what = fmt::format("parameter '{}'", p.name);
    check_tensor(what, p.shape, known);
    expect_between("the number of steps of " + what, p.steps, 0, kMostSteps);
    check_cut(p);
    check_runs(p, manifest);
  }
  for (const SavedBuffer& b : manifest.buffers) {
    check_tensor(fmt::format("buffer '{}'", b.name), b.shape, known);
  }
}

}  // namespace zero::io::checkpoint
