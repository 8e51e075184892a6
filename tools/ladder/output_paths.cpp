#include "output_paths.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <map>
#include <set>

#include <zero/base/arguments.hpp>
#include <zero/base/error.hpp>
#include <zero/data/text.hpp>
#include <zero/io/checkpoint_manifest.hpp>

namespace zero::ladder {
namespace {

namespace fs = std::filesystem;
using base::place_of;

// Where something is read or written, and the option that says so.
using Places = std::map<fs::path, std::string>;

// Adds a folder of weights or of a checkpoint and the files that are read of it. A checkpoint has
// one level of folders within, weights none.
void add_folder(Places& read, const char* option, const std::string& folder) {
  static const std::set<std::string> names = {"config.json", "tokenizer.json", "manifest.json",
                                              "model.safetensors.index.json"};
  if (folder.empty()) return;
  const std::string text = fmt::format("{} {}", option, folder);
  read.emplace(place_of(folder), text);
  std::error_code problem;
  auto entry = fs::recursive_directory_iterator(folder, problem);
  for (; !problem && entry != fs::recursive_directory_iterator(); entry.increment(problem)) {
    if (entry.depth() == 1) entry.disable_recursion_pending();
    const fs::path& file = entry->path();
    if (file.extension() == ".safetensors" || names.contains(file.filename().string())) {
      read.emplace(place_of(file), text);
    }
  }
}

Places places_read(const Options& o) {
  Places read;
  for (const std::string& name : o.data) read.emplace(place_of(name), "--data " + name);
  if (!o.reviews() && !o.data.empty()) {
    for (const fs::path& file : data::text_files(o.data)) {
      read.emplace(place_of(file), "--data " + file.string());
    }
  }
  add_folder(read, "--weights", o.weights);
  add_folder(read, "--resume", o.checkpoint.resume);
  return read;
}

// All that is written, each with the option that says so.
std::vector<std::pair<fs::path, std::string>> outputs(const Options& o) {
  std::vector<std::pair<fs::path, std::string>> all;
  const auto add = [&all](const char* option, const std::string& name,
                          const std::vector<std::string>& files = {}) {
    if (name.empty()) return;
    const std::string text = fmt::format("{} {}", option, name);
    all.emplace_back(name, text);
    for (const std::string& file : files) all.emplace_back(fs::path(name) / file, text);
  };
  add("--json", o.json);
  add("--memory-timeline", o.pictures.memory_timeline);
  add("--trace", o.pictures.trace);
  add("--save", o.save, {"config.json", "model.safetensors", "model.safetensors.index.json"});
  add("--checkpoint", o.checkpoint.folder, {io::checkpoint::kManifestFile});
  for (int rank = 0; rank < o.world_size && !o.pictures.trace.empty(); ++rank) {
    for (const std::string& mode : o.modes) add("--trace", o.pictures.trace_file(mode, rank));
  }
  return all;
}

}  // namespace

void check_output_paths(const Options& o) {
  Places read = places_read(o), written;
  const bool goes_on = !o.checkpoint.folder.empty() && !o.checkpoint.resume.empty() &&
                       place_of(o.checkpoint.folder) == place_of(o.checkpoint.resume);
  for (const auto& [name, text] : outputs(o)) {
    const fs::path place = place_of(name);
    if (read.contains(place) && !(goes_on && text.starts_with("--checkpoint "))) {
      throw Error(fmt::format("{} would be written over {}, which is read: name another place",
                              text, read[place]));
    }
    const auto [other, is_new] = written.emplace(place, text);
    if (!is_new && other->second != text) {
      throw Error(fmt::format("{} and {} would be written to the same place: name two",
                              other->second, text));
    }
  }
}

}  // namespace zero::ladder
