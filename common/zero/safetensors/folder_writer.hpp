#pragma once

#include <torch/types.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <zero/safetensors/writer.hpp>

namespace zero::safetensors {

/// Like Writer for a folder, split into files of at most `max_bytes` of tensors as by
/// transformers' save_pretrained: in the order of `specs`; a tensor larger than `max_bytes` gets a
/// file of its own. One file is called model.safetensors; several are called
/// model-00001-of-0000N.safetensors, with model.safetensors.index.json.
///
/// finish() first completes every file under its temporary name and only then touches an earlier
/// save in the folder. For several files, it removes the old index, names the files, and then
/// writes the new index. Last it removes other files of the earlier save (model.safetensors or
/// model-*-of-*.safetensors). If the program dies in between, the folder holds the old save, the
/// new one, or one that Folder refuses, never a mixture.
class FolderWriter {
 public:
  /// The largest file, in bytes, unless told otherwise.
  static constexpr std::int64_t kDefaultMaxBytes = 5'000'000'000;

  /// Creates `folder` if need be; it stays, empty, if the save fails.
  /// @throws zero::Error as Writer, and if `folder` is a file.
  FolderWriter(const std::filesystem::path& folder, const std::vector<Spec>& specs,
               std::int64_t max_bytes = kDefaultMaxBytes,
               const Metadata& metadata = {{"format", "pt"}});

  /// As Writer::write().
  void write(const std::string& name, const at::Tensor& tensor);

  /// As Writer::finish(), for all files. If something is missing or the disk is full, an
  /// earlier save is still whole.
  void finish();

 private:
  std::filesystem::path folder_;
  std::vector<Writer> writers_;
  std::vector<std::string> file_names_;
  Index index_;             // name to position in writers_
  std::string index_text_;  // empty if there is one file
};

}  // namespace zero::safetensors
