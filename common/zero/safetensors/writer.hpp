#pragma once

#include <torch/types.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <zero/base/atomic_file.hpp>
#include <zero/safetensors/spec.hpp>

namespace zero::safetensors {

/// Writes one .safetensors file tensor by tensor, so that a model can be gathered and saved unit by
/// unit without ever being whole in memory.
///
/// The file is written under a temporary name in the same folder and renamed in finish(); an
/// existing file stays until then. Without finish() the destructor removes the temporary file. Its
/// space is reserved at once, so a full disk is noticed before the first tensor. Tensors are
/// ordered by element size, large ones first, and in the order of `specs` among equals, so every
/// tensor is aligned to its element, as in the files of the reference implementation.
class Writer {
 public:
  /// @throws zero::Error if a name comes twice or is "__metadata__", a dtype has no name in the
  /// format, or the folder is missing, cannot be written to, or is full.
  Writer(const std::filesystem::path& path, const std::vector<Spec>& specs,
         const Metadata& metadata);

  /// Writes the values of one tensor. Tensors may come in any order. `tensor` has the announced
  /// shape, any strides, and the announced dtype or one that converts to it. At most kScratchBytes
  /// of scratch, and the tensor once more if it is not contiguous.
  /// @throws zero::Error for an unknown name, another shape, a dtype that does not convert, or a
  /// failed write. After that, only write missing tensors or destroy the writer.
  void write(const std::string& name, const at::Tensor& tensor);

  /// Checks that every tensor was written, flushes the bytes to the disk, and renames the file.
  /// Blocks until that is done. The writer cannot be used afterwards.
  /// @throws zero::Error if tensors are missing, it was called before, or the disk fails.
  void finish();

 private:
  std::unique_ptr<base::AtomicFile> file_;
  std::vector<Entry> entries_;
  Index index_;
  std::vector<bool> written_;
  std::int64_t data_start_ = 0;
};

/// Writes all of `tensors`, each with its own dtype, to the file `path`.
/// @throws zero::Error as Writer.
void save(const std::filesystem::path& path, const NamedTensors& tensors,
          const Metadata& metadata = {{"format", "pt"}});

}  // namespace zero::safetensors
