#include "output_paths.hpp"

#include <filesystem>
#include <map>
#include <set>

#include <tools/ladder/data/text.hpp>
#include <tools/support/arguments.hpp>
#include <zero/base/atomic_file.hpp>
#include <zero/base/error.hpp>
#include <zero/io/checkpoint_manifest.hpp>

namespace zero::ladder {
namespace {

namespace fs = std::filesystem;
using tools::place_of;

// Where something is read or written, and the option that says so.
using Places = std::map<fs::path, std::string>;

// Adds a folder of weights or of a checkpoint and the files that are read of it. A checkpoint has
// one level of folders within, weights none.
void add_folder(Places& places, const std::string& option, const std::string& folder) {
  static const std::set<std::string> names = {"config.json", "tokenizer.json", "manifest.json",
                                              "model.safetensors.index.json"};
  if (folder.empty()) return;
  places.emplace(place_of(folder), option);
  std::error_code problem;
  auto entry = fs::recursive_directory_iterator(folder, problem);
  for (; !problem && entry != fs::recursive_directory_iterator(); entry.increment(problem)) {
    if (entry.depth() == 1) entry.disable_recursion_pending();
    const fs::path& file = entry->path();
    if (file.extension() == ".safetensors" || names.contains(file.filename().string())) {
      places.emplace(place_of(file), option);
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
  add_folder(read, "--weights " + o.weights, o.weights);
  const std::string &to = o.checkpoint.folder, &from = o.checkpoint.resume;
  // A run that goes on may replace the checkpoint.
  const bool goes_on = !to.empty() && !from.empty() && place_of(to) == place_of(from);
  add_folder(read, goes_on ? "--checkpoint " + to : "--resume " + from, from);
  return read;
}

}  // namespace

void check_output_paths(const Options& o, bool writes) {
  Places places = places_read(o);
  const auto add = [&](const std::string& option, const std::string& name,
                       const std::vector<std::string>& files_in_it = {}) {
    if (name.empty()) return;
    const fs::path place = name;
    const std::string text = option + " " + name;
    const auto claim = [&](const fs::path& path) {
      const auto [other, is_new] = places.emplace(place_of(path), text);
      if (is_new || other->second == text) return;
      throw Error(text + " would be written to the place of " + other->second + ": name two");
    };
    claim(place);
    for (const std::string& file : files_in_it) claim(place / file);
    if (writes) base::check_writable(files_in_it.empty() ? place : place / files_in_it.front());
  };
  add("--json", o.json);
  add("--memory-timeline", o.pictures.memory_timeline);
  add("--trace", o.pictures.trace);
  add("--save", o.save, {"config.json", "model.safetensors"});
  add("--checkpoint", o.checkpoint.folder, {io::checkpoint::kManifestFile});
  for (int rank = 0; rank < o.world_size && !o.pictures.trace.empty(); ++rank) {
    for (const std::string& mode : o.modes) add("--trace", o.pictures.trace_file(mode, rank));
  }
}

}  // namespace zero::ladder
