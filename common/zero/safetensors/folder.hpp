#pragma once

#include <torch/types.h>

#include <filesystem>
#include <string>
#include <vector>

#include <zero/safetensors/file.hpp>

namespace zero::safetensors {

/// The weights of a model in the layout of transformers: a folder with model.safetensors, or with
/// several files and model.safetensors.index.json, whose "weight_map" names them all. If a folder
/// has both, model.safetensors is used, as in transformers.
class Folder {
 public:
  /// Opens a folder, or a single .safetensors file. All files are opened and checked.
  /// @throws zero::Error as File, and if the folder has neither file, the index is not
  /// JSON, has no weight_map or names a file that is not in the folder, or a tensor is in several
  /// files.
  explicit Folder(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }

  /// The names of all tensors: files in the order of their names, each in its own order.
  const std::vector<std::string>& names() const { return names_; }

  bool contains(const std::string& name) const { return index_.contains(name); }

  /// As File::info(); begin and end count within the tensor's own file.
  const Entry& info(const std::string& name) const;

  /// The file that holds the tensor, for messages. @throws zero::Error as info().
  const std::filesystem::path& file_of(const std::string& name) const { return find(name).path(); }

  /// As File::read().
  at::Tensor read(const std::string& name) const;

  /// As File::read_into().
  void read_into(const std::string& name, const at::Tensor& out) const;

 private:
  void add_file(const std::filesystem::path& path);
  const File& find(const std::string& name) const;

  std::filesystem::path path_;
  std::vector<File> files_;
  std::vector<std::string> names_;
  Index index_;  // name to position in files_
};

}  // namespace zero::safetensors
