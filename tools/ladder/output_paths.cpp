#include "output_paths.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <initializer_list>
#include <map>
#include <system_error>

#include <zero/base/arguments.hpp>
#include <zero/base/error.hpp>
#include <zero/data/text.hpp>
#include <zero/io/checkpoint_manifest.hpp>

namespace zero::ladder {
namespace {

namespace fs = std::filesystem;
using base::place_of;

// Where something is read or written, and the option that says so.
using Paths = std::map<fs::path, std::string>;

std::string option_text(const char* option, const std::string& name) {
  return fmt::format("{} {}", option, name);
}

// Whether a folder of weights or of a checkpoint is read for files of this name.
bool is_read(const fs::path& file) {
  static const std::vector<std::string> names = {"config.json", "tokenizer.json", "manifest.json",
                                                 "model.safetensors.index.json"};
  return file.extension() == ".safetensors" ||
         std::find(names.begin(), names.end(), file.filename().string()) != names.end();
}

// A folder and what is read of it. A checkpoint has one level of folders within, weights none.
void add_folder(Paths& paths, const char* option, const std::string& folder) {
  if (folder.empty()) return;
  const std::string text = option_text(option, folder);
  paths.emplace(place_of(folder), text);
  std::error_code problem;
  auto entry = fs::recursive_directory_iterator(folder, problem);
  for (; !problem && entry != fs::recursive_directory_iterator(); entry.increment(problem)) {
    if (entry.depth() == 1) entry.disable_recursion_pending();
    if (is_read(entry->path())) paths.emplace(place_of(entry->path()), text);
  }
}

Paths paths_read(const Options& o) {
  Paths read;
  for (const std::string& name : o.data) read.emplace(place_of(name), option_text("--data", name));
  if (!o.reviews() && !o.data.empty()) {
    for (const fs::path& file : data::text_files(o.data)) {
      read.emplace(place_of(file), option_text("--data", file.string()));
    }
  }
  add_folder(read, "--weights", o.weights);
  add_folder(read, "--resume", o.resume);
  return read;
}

class OutputPaths {
 public:
  explicit OutputPaths(const Options& options) : options_(options), read_(paths_read(options)) {}

  void add(const char* option, const std::string& name) {
    if (!name.empty()) add(option_text(option, name), fs::path(name));
  }

  void add_folder(const char* option, const std::string& name,
                  std::initializer_list<const char*> files) {
    add(option, name);
    if (name.empty()) return;
    for (const char* file : files) add(option_text(option, name), fs::path(name) / file);
  }

 private:
  void add(const std::string& text, const fs::path& name) {
    const fs::path place = place_of(name);
    const auto found = read_.find(place);
    if (found != read_.end() && !goes_on(text)) {
      throw Error(fmt::format("{} would be written over {}, which is read: name another place",
                              text, found->second));
    }
    const auto [other, is_new] = written_.emplace(place, text);
    if (!is_new && other->second != text) {
      throw Error(fmt::format("{} and {} would be written to the same place: name two",
                              other->second, text));
    }
  }

  bool goes_on(const std::string& text) const {
    return text.starts_with("--checkpoint ") && !options_.resume.empty() &&
           place_of(options_.checkpoint) == place_of(options_.resume);
  }

  const Options& options_;
  Paths read_;
  Paths written_;
};

}  // namespace

void check_output_paths(const Options& options) {
  OutputPaths paths(options);
  paths.add("--json", options.json);
  paths.add("--memory-timeline", options.memory_timeline);
  paths.add("--trace", options.trace);
  paths.add_folder("--save", options.save,
                   {"config.json", "model.safetensors", "model.safetensors.index.json"});
  paths.add_folder("--checkpoint", options.checkpoint, {io::checkpoint::kManifestFile});
  if (options.trace.empty()) return;
  for (const std::string& mode : options.modes) {
    for (int rank = 0; rank < options.world_size; ++rank) {
      paths.add("--trace", options.trace_file(mode, rank));
    }
  }
}

}  // namespace zero::ladder
