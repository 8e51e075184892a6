#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <regex>
#include <system_error>

#include <zero/base/atomic_file.hpp>
#include <zero/base/error.hpp>
#include <zero/base/json.hpp>
#include <zero/safetensors/folder_writer.hpp>
#include <zero/safetensors/format.hpp>

namespace zero::safetensors {
namespace {

namespace fs = std::filesystem;

using Specs = std::vector<Spec>;

// Cuts where huggingface_hub's split_state_dict_into_shards_factory does: a tensor that is too
// large by itself gets its own file and leaves the current file open.
std::vector<Specs> cut(const Specs& specs, std::int64_t max_bytes) {
  std::vector<Specs> files;
  Specs current;
  std::int64_t current_bytes = 0;
  for (const Spec& spec : specs) {
    const std::int64_t bytes = spec.bytes();
    if (bytes > max_bytes) {
      files.push_back({spec});
      continue;
    }
    if (bytes > max_bytes - current_bytes) {
      files.push_back(std::move(current));
      current.clear();
      current_bytes = 0;
    }
    current.push_back(spec);
    current_bytes += bytes;
  }
  if (!current.empty() || files.empty()) files.push_back(std::move(current));
  return files;
}

std::string file_name(std::size_t number, std::size_t count) {
  return count == 1 ? kSingleFile : fmt::format("model-{:05}-of-{:05}.safetensors", number, count);
}

// The text that transformers writes: keys in order, two spaces, a line end.
std::string index_text(const std::vector<Specs>& files) {
  nlohmann::json weight_map;
  std::int64_t bytes = 0;
  std::int64_t parameters = 0;
  for (std::size_t i = 0; i < files.size(); ++i) {
    for (const Spec& spec : files[i]) {
      weight_map[spec.name] = file_name(i + 1, files.size());
      bytes += spec.bytes();
      parameters += spec.elements();
    }
  }
  const nlohmann::json index = {
      {"metadata", {{"total_parameters", parameters}, {"total_size", bytes}}},
      {"weight_map", weight_map}};
  return index.dump(/*indent=*/2, ' ', /*ensure_ascii=*/true) + "\n";
}

void remove_file(const fs::path& path) {
  std::error_code error;
  fs::remove(path, error);
  if (error) {
    throw Error(fmt::format("{}: belongs to an earlier save and cannot be removed: {}",
                            path.string(), error.message()));
  }
}

// Removes the weights in `folder` that are not among `kept`.
void remove_other_weights(const fs::path& folder, const std::vector<std::string>& kept) {
  static const std::regex weights(R"(model(-\d{5}-of-\d{5})?\.safetensors)");
  std::vector<fs::path> others;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (std::regex_match(name, weights) && std::ranges::count(kept, name) == 0) {
      others.push_back(entry.path());
    }
  }
  for (const fs::path& path : others) remove_file(path);
}

}  // namespace

FolderWriter::FolderWriter(const fs::path& folder, const Specs& specs, std::int64_t max_bytes,
                           const Metadata& metadata)
    : folder_(folder) {
  // Checks every tensor, and for names in two files, before creating anything.
  lay_out(specs, folder.string());
  std::error_code error;
  fs::create_directories(folder, error);
  if (error || !fs::is_directory(folder)) {
    throw Error(fmt::format("{}: cannot be made a folder: {}; name one that can be written to",
                            folder.string(), error ? error.message() : "it is a file"));
  }
  const std::vector<Specs> files = cut(specs, max_bytes);
  for (std::size_t i = 0; i < files.size(); ++i) {
    for (const Spec& spec : files[i]) index_[spec.name] = i;
    file_names_.push_back(file_name(i + 1, files.size()));
    writers_.emplace_back(folder / file_names_.back(), files[i], metadata);
  }
  if (files.size() > 1) index_text_ = index_text(files);
}

void FolderWriter::write(const std::string& name, const at::Tensor& tensor) {
  writers_[position_of(name, index_, folder_)].write(name, tensor);
}

void FolderWriter::finish() {
  for (Writer& writer : writers_) writer.check_complete();
  for (Writer& writer : writers_) writer.complete();
  // A single file replaces the old one at once and hides an old index. Several files are hidden by
  // an old model.safetensors, or unreadable without an index, until the new index is there.
  const bool several = writers_.size() > 1;
  if (several) remove_file(folder_ / kIndexFile);
  for (Writer& writer : writers_) writer.publish();
  if (several) {
    base::write_file(folder_ / kIndexFile, index_text_);
  } else {
    remove_file(folder_ / kIndexFile);
  }
  remove_other_weights(folder_, file_names_);
}

}  // namespace zero::safetensors
