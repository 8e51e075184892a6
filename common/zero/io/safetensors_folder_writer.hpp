#pragma once

#include <torch/types.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <unordered_map>
#include <vector>

#include <zero/io/safetensors_writer.hpp>

namespace zero::io {

/// As SafetensorsWriter for a folder, cut into files of at most `max_bytes` of tensors as
/// transformers' save_pretrained cuts: in the order of `specs`; a tensor that is larger than
/// `max_bytes` gets a file of its own. One file is called model.safetensors; several are called
/// model-00001-of-0000N.safetensors, with model.safetensors.index.json.
///
/// finish() first completes every file under its temporary name and only then touches an earlier
/// save in the folder. Several files are named after the old index has gone and before the new one
/// comes; what the earlier save leaves over (model.safetensors or model-*-of-*.safetensors) is
/// removed last. If the program dies in between, the folder holds the old save, the new one, or one
/// that SafetensorsFolder refuses, never a mixture of the two.
class SafetensorsFolderWriter {
 public:
  /// The largest file, in bytes, unless told otherwise.
  static constexpr std::int64_t kDefaultMaxBytes = 5'000'000'000;

  /// Makes `folder` if need be; it stays, empty, if the save fails.
  /// @throws zero::Error as SafetensorsWriter, for max_bytes below 1, and where `folder` is a file.
  SafetensorsFolderWriter(const std::filesystem::path& folder,
                          const std::vector<SafetensorsSpec>& specs,
                          std::int64_t max_bytes = kDefaultMaxBytes,
                          const SafetensorsMetadata& metadata = {{"format", "pt"}});

  /// As SafetensorsWriter::write().
  void write(const std::string& name, const at::Tensor& tensor);

  /// As SafetensorsWriter::finish(), for all files. Where something is missing or the disk is full
  /// an earlier save is still whole.
  void finish();

 private:
  std::filesystem::path folder_;
  std::vector<SafetensorsWriter> writers_;
  std::vector<std::string> file_names_;
  std::unordered_map<std::string, std::size_t> index_;  // name to position in writers_
  std::string index_text_;                              // empty where there is one file
};

}  // namespace zero::io
