#pragma once

#include <torch/types.h>

#include <filesystem>
#include <string>
#include <vector>

#include <zero/io/safetensors_file.hpp>

namespace zero::io {

/// The weights of a model in the layout of transformers: a folder with model.safetensors, or with
/// several files and model.safetensors.index.json, whose "weight_map" says which file holds which
/// tensor. If a folder has both, model.safetensors is used, as in transformers.
class SafetensorsFolder {
 public:
  /// Opens a folder, or a single .safetensors file. All files are opened and checked.
  /// @throws zero::Error as SafetensorsFile, and if the folder has neither file, the index is not
  /// JSON, has no weight_map or names a file that is not in the folder, or index and files disagree
  /// on which tensors there are.
  explicit SafetensorsFolder(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }

  /// The names of all tensors: files in the order of their names, each in its own order.
  const std::vector<std::string>& names() const { return names_; }

  bool contains(const std::string& name) const { return index_.contains(name); }

  /// As SafetensorsFile::info(); begin and end count within the tensor's own file.
  const SafetensorsEntry& info(const std::string& name) const;

  /// The file that holds the tensor, for messages. @throws zero::Error as info().
  const std::filesystem::path& file_of(const std::string& name) const { return find(name).path(); }

  /// As SafetensorsFile::read().
  at::Tensor read(const std::string& name) const;

  /// As SafetensorsFile::read_into().
  void read_into(const std::string& name, const at::Tensor& out) const;

 private:
  void open_indexed_files(const std::filesystem::path& index);
  void add_file(const std::filesystem::path& path);
  const SafetensorsFile& find(const std::string& name) const;

  std::filesystem::path path_;
  std::vector<SafetensorsFile> files_;
  std::vector<std::string> names_;
  SafetensorsIndex index_;  // name to position in files_
};

}  // namespace zero::io
