#include <fmt/format.h>

#include <set>
#include <system_error>

#include <zero/base/mapped_file.hpp>
#include <zero/safetensors/folder.hpp>
#include <zero/safetensors/format.hpp>

namespace zero::safetensors {
namespace {

namespace fs = std::filesystem;

std::set<std::string> files_of(const fs::path& index) {
  const base::MappedFile text(index, index.string());
  const auto document = parse(text.bytes(), index.string());
  const auto weight_map = document.value("weight_map", nlohmann::json());
  if (!weight_map.is_object() || weight_map.empty()) {
    refuse(index, "has no \"weight_map\" that says which file holds which tensor");
  }
  std::set<std::string> files;
  for (const auto& [tensor, file] : weight_map.items()) {
    // Not a text: not a name either.
    const std::string name = file.is_string() ? file.get<std::string>() : "";
    // An index must not lead to files in other folders.
    if (name.empty() || name == "." || name == ".." || fs::path(name).filename() != name) {
      refuse(index, fmt::format("tensor {}: {} is not the name of a file in this folder",
                                shown(tensor), shown(name)));
    }
    if (std::error_code ignored; !fs::exists(index.parent_path() / name, ignored)) {
      refuse(index, fmt::format("names the file {}, which is not in the folder", shown(name)));
    }
    files.insert(name);
  }
  return files;
}

}  // namespace

Folder::Folder(const fs::path& path) : path_(path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) {
    add_file(path);  // throws if it is missing
  } else if (fs::exists(path / kSingleFile, error)) {
    add_file(path / kSingleFile);
  } else if (fs::exists(path / kIndexFile, error)) {
    for (const std::string& name : files_of(path / kIndexFile)) add_file(path / name);
  } else {
    refuse(path, fmt::format("has neither {} nor {}", kSingleFile, kIndexFile));
  }
}

void Folder::add_file(const fs::path& path) {
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

const File& Folder::find(const std::string& name) const {
  return files_[position_of(name, index_, path_)];
}

const Entry& Folder::info(const std::string& name) const { return find(name).info(name); }

at::Tensor Folder::read(const std::string& name) const { return find(name).read(name); }

void Folder::read_into(const std::string& name, const at::Tensor& out) const {
  find(name).read_into(name, out);
}

}  // namespace zero::safetensors
