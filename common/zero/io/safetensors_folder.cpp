#include <fmt/format.h>

#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <system_error>

#include <zero/base/error.hpp>
#include <zero/io/safetensors_folder.hpp>
#include <zero/io/safetensors_format.hpp>

namespace zero::io {
namespace {

namespace fs = std::filesystem;
using safetensors::kIndexFile;
using safetensors::kSingleFile;
using safetensors::refuse;
using safetensors::shown;

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

std::string read_text(const fs::path& path) {
  std::error_code error;
  const auto size = fs::file_size(path, error);
  if (error) refuse(path, fmt::format("cannot be read: {}", error.message()));
  if (size > safetensors::kMaxHeaderBytes) {
    refuse(path, fmt::format("has {} bytes; an index of weights has at most {}", size,
                             safetensors::kMaxHeaderBytes));
  }
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  if (!file) refuse(path, "cannot be read");
  return text;
}

// File to the tensors that the index expects in it.
using WeightMap = std::map<std::string, std::vector<std::string>>;

WeightMap read_weight_map(const fs::path& index) {
  const auto document = safetensors::parse_strictly(read_text(index), index.string());
  const auto found = document.find("weight_map");
  if (found == document.end() || !found->is_object() || found->empty()) {
    refuse(index, "has no \"weight_map\" that says which file holds which tensor");
  }
  WeightMap files;
  for (const auto& [tensor, file] : found->items()) {
    if (!file.is_string()) {
      refuse(index, fmt::format("tensor {}: its file is not a text", shown(tensor)));
    }
    const auto& name = file.get_ref<const std::string&>();
    // An index must not lead to files in other folders.
    if (name.empty() || name == "." || name == ".." || fs::path(name).filename() != name) {
      refuse(index, fmt::format("tensor {}: {} is not the name of a file in this folder",
                                shown(tensor), shown(name)));
    }
    files[name].push_back(tensor);
  }
  return files;
}

}  // namespace

SafetensorsFolder::SafetensorsFolder(const fs::path& path) : path_(path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) {
    add_file(path);  // throws if it is missing
  } else if (is_there(path / kSingleFile)) {
    add_file(path / kSingleFile);
  } else if (is_there(path / kIndexFile)) {
    open_indexed_files(path / kIndexFile);
  } else {
    refuse(path, fmt::format("has neither {} nor {}", kSingleFile, kIndexFile));
  }
}

void SafetensorsFolder::add_file(const fs::path& path) {
  files_.emplace_back(path);
  for (const std::string& name : files_.back().names()) {
    const auto [earlier, is_new] = index_.emplace(name, files_.size() - 1);
    if (!is_new) {
      refuse(path, fmt::format("tensor {} is also in {}", shown(name),
                               files_[earlier->second].path().string()));
    }
    names_.push_back(name);
  }
}

void SafetensorsFolder::open_indexed_files(const fs::path& index) {
  for (const auto& [file_name, tensors] : read_weight_map(index)) {
    const fs::path path = path_ / file_name;
    if (!is_there(path)) {
      refuse(index, fmt::format("names the file {}, which is not in the folder", shown(file_name)));
    }
    add_file(path);
    const SafetensorsFile& file = files_.back();
    for (const std::string& tensor : tensors) {
      if (!file.contains(tensor)) {
        refuse(index, fmt::format("says that tensor {} is in {}, but it is not", shown(tensor),
                                  shown(file_name)));
      }
    }
    if (file.names().size() == tensors.size()) continue;
    const std::set<std::string> indexed(tensors.begin(), tensors.end());
    for (const std::string& name : file.names()) {
      if (!indexed.contains(name)) {
        refuse(path, fmt::format("tensor {} is not in {}", shown(name), index.string()));
      }
    }
  }
}

const SafetensorsFile& SafetensorsFolder::find(const std::string& name) const {
  const auto found = index_.find(name);
  if (found == index_.end()) {
    throw Error(safetensors::unknown_tensor(name, names_, path_.string()));
  }
  return files_[found->second];
}

const SafetensorsEntry& SafetensorsFolder::info(const std::string& name) const {
  return find(name).info(name);
}

at::Tensor SafetensorsFolder::read(const std::string& name) const { return find(name).read(name); }

void SafetensorsFolder::read_into(const std::string& name, const at::Tensor& out) const {
  find(name).read_into(name, out);
}

}  // namespace zero::io
