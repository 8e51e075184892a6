#pragma once

#include <torch/types.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <zero/base/mapped_file.hpp>
#include <zero/safetensors/spec.hpp>

namespace zero::safetensors {

/// One .safetensors file, open for reading.
///
/// The file is mapped into memory, not read, and pages are released once copied: reading a large
/// file adds little to the resident set. The file must not be shortened while it is open; replacing
/// it by rename, as Writer does, is safe. Copies share the mapping. Several threads may
/// read at once.
class File {
 public:
  /// Opens `path` and checks all of it except the values of the tensors.
  /// @throws zero::Error naming the file, the tensor, what is wrong and what would be right, if the
  /// file is missing, not a regular file, empty or cut short; the header is longer than 100 MB, is
  /// not JSON, or names a key twice; a dtype is unknown; a shape is negative, has more than 64
  /// dimensions or too many elements to count; data_offsets do not match the size of the tensor,
  /// overlap, leave a hole, or exceed the file.
  explicit File(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }

  /// The names of the tensors, in the order of their bytes in the file.
  const std::vector<std::string>& names() const { return names_; }

  bool contains(const std::string& name) const { return index_.contains(name); }

  /// @throws zero::Error, with the first names, if the file has no such tensor.
  const Entry& info(const std::string& name) const;

  /// The bytes of a tensor in the mapped file, which live as long as a copy of this object.
  /// @throws zero::Error as info().
  std::string_view bytes(const std::string& name) const;

  /// The mapped file.
  const base::MappedFile& mapping() const { return *mapping_; }

  /// The texts under "__metadata__"; empty if there are none.
  const Metadata& metadata() const { return metadata_; }

  /// A new contiguous CPU tensor with the dtype of the file, charged to the memory category of the
  /// current scope.
  /// @throws zero::Error for an unknown name, or a BOOL that is neither 0 nor 1.
  at::Tensor read(const std::string& name) const;

  /// Copies a tensor into `out`, which has its shape, any strides, and its dtype or one that it can
  /// be converted to. Autograd does not see it: `out` may be a parameter, no operation is recorded,
  /// and its version counter stays. At most kScratchBytes of scratch, and `out` once more if it is
  /// not contiguous.
  /// @throws zero::Error as read(), and if `out` has another shape or a dtype that cannot be
  /// converted to.
  void read_into(const std::string& name, const at::Tensor& out) const;

  /// Copies out.numel() elements of a tensor, starting at element `begin` of the flattened tensor,
  /// into `out` (any shape), and reads no others. Otherwise like read_into().
  /// @throws zero::Error as read_into(), and if the tensor does not have that many.
  void read_range_into(const std::string& name, std::int64_t begin, const at::Tensor& out) const;

 private:
  std::filesystem::path path_;
  std::shared_ptr<const base::MappedFile> mapping_;
  const char* data_ = nullptr;  // first byte after the header
  std::vector<Entry> entries_;
  std::vector<std::string> names_;
  Index index_;
  Metadata metadata_;
};

}  // namespace zero::safetensors
