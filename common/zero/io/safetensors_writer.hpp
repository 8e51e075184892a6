#pragma once

#include <torch/types.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include <zero/base/atomic_file.hpp>
#include <zero/io/safetensors_spec.hpp>

namespace zero::io {

/// Writes one .safetensors file tensor by tensor, so that a model that is gathered unit by unit can
/// be saved without ever being whole in memory.
///
/// The file grows under a temporary name in the same folder and takes its place in finish(); a file
/// that was there before stays until then. Its space is reserved at once, so a full disk is noticed
/// before the first tensor. Tensors lie in the file by element size, large ones first, and in the
/// order of `specs` among equals: every tensor is aligned to its element, as in the files of the
/// reference implementation.
class SafetensorsWriter {
 public:
  /// @throws zero::Error where a name comes twice, is "__metadata__" or is not UTF-8; where a dtype
  /// has no name in the format, or a shape is negative, too long or too large; where the header
  /// would be longer than 100 MB; where the folder is missing, cannot be written to, or is full.
  SafetensorsWriter(const std::filesystem::path& path, const std::vector<SafetensorsSpec>& specs,
                    const SafetensorsMetadata& metadata);
  /// Removes the temporary file unless finish() has put it in place.
  ~SafetensorsWriter();
  SafetensorsWriter(SafetensorsWriter&&) noexcept;
  SafetensorsWriter& operator=(SafetensorsWriter&&) noexcept;

  /// Writes the values of one tensor: in any order of names, each exactly once. `tensor` has the
  /// announced shape, any strides, and the announced dtype or one that is converted to it. At most
  /// kSafetensorsScratchBytes of scratch.
  /// @throws zero::Error for an unknown name, a second write, another shape, a dtype that is not
  /// converted, a tensor without storage, or a failed write. The writer can then only be destroyed
  /// or given what it lacks.
  void write(const std::string& name, const at::Tensor& tensor);

  /// Checks that every tensor was written, brings the bytes to the disk, and gives the file its
  /// name. Blocks until that is done. The writer is of no use afterwards.
  /// @throws zero::Error where tensors are missing, where it was called before, or where the disk
  /// refuses.
  void finish();

 private:
  friend class SafetensorsFolderWriter;

  void check_complete() const;  // the parts of finish()
  void complete();
  void publish();

  std::unique_ptr<base::AtomicFile> file_;
  std::vector<SafetensorsEntry> entries_;
  std::unordered_map<std::string, std::size_t> index_;
  std::vector<bool> written_;
  std::int64_t data_start_ = 0;
  bool finished_ = false;
};

}  // namespace zero::io
