#pragma once

#include <torch/types.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace zero::base {
class AtomicFile;
}

/// Weights in the safetensors format (https://github.com/huggingface/safetensors, "Format"), the
/// one that Hugging Face's transformers reads and writes:
///
///     8 bytes      length N of the header, unsigned, little endian
///     N bytes      JSON: {"__metadata__": {text: text}, name: {"dtype": ..., "shape": [...],
///                  "data_offsets": [begin, end]}, ...}, padded with spaces
///     the rest     the tensors, row-major, little endian, one after the other without holes;
///                  begin and end count from the first byte after the header
///
/// Known dtypes: F64, F32, F16, BF16, I64, I32, I16, I8, U8, BOOL.
///
/// Functions that convert do so between F64, F32, F16 and BF16 only, rounded as at::Tensor::to
/// rounds. None of the functions below talks to other ranks.
namespace zero::io {

/// The most scratch memory that reading or writing one tensor takes (1 MiB, in bytes), whatever the
/// tensor's size.
inline constexpr std::int64_t kSafetensorsScratchBytes = std::int64_t{1} << 20;

/// Texts that travel with the tensors, such as {"format", "pt"}.
using SafetensorsMetadata = std::map<std::string, std::string>;

/// A tensor's name, dtype and shape.
struct SafetensorsSpec {
  std::string name;
  at::ScalarType dtype = at::kFloat;
  std::vector<std::int64_t> shape;

  /// Number of elements: the product of the shape, 1 for a scalar.
  std::int64_t elements() const;
  /// elements() times the size of the dtype.
  std::int64_t bytes() const;
};

/// A tensor of a file: its bytes are [begin, end), counted from the end of the header.
struct SafetensorsEntry : SafetensorsSpec {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

/// One .safetensors file, open for reading.
///
/// The file is mapped into memory, not read, and pages are given back once copied: reading a large
/// file adds little to the resident set. Nobody may shorten the file while it is open; replacing it
/// by rename, as SafetensorsWriter does, is safe. Copies share the mapping. Reading from several
/// threads at once is allowed.
class SafetensorsFile {
 public:
  /// Opens `path` and checks all of it but the values of the tensors.
  /// @throws zero::Error naming the file, the tensor, what is wrong and what would be right, where
  /// the file is missing, not a regular file, empty or cut short; where the header is longer than
  /// 100 MB, is not JSON, or names a key twice; where a dtype is unknown, a shape is negative, has
  /// more than 64 dimensions or too many elements to count; where data_offsets are not the size of
  /// the tensor, overlap, leave a hole, or leave the file.
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }

  /// The names of the tensors, in the order of their bytes in the file.
  const std::vector<std::string>& names() const { return names_; }

  bool contains(const std::string& name) const { return index_.contains(name); }

  /// @throws zero::Error, proposing the nearest name, where the file has no such tensor.
  const SafetensorsEntry& info(const std::string& name) const;

  /// The texts under "__metadata__"; empty where there are none.
  const SafetensorsMetadata& metadata() const { return metadata_; }

  /// A new contiguous CPU tensor with the dtype of the file, charged to the memory category of the
  /// current scope.
  /// @throws zero::Error for an unknown name, or a BOOL that is neither 0 nor 1.
  at::Tensor read(const std::string& name) const;

  /// Copies a tensor into `out`, which has its shape, any strides, and its dtype or one that it is
  /// converted to. Written below autograd: `out` may be a parameter, no operation is recorded, and
  /// its version counter stays. At most kSafetensorsScratchBytes of scratch.
  /// @throws zero::Error as read(), and where `out` has another shape, a dtype that is not
  /// converted to, elements that share memory, or no storage.
  void read_into(const std::string& name, const at::Tensor& out) const;

  /// Copies out.numel() elements of a tensor, from element `begin` of the flattened tensor on, into
  /// `out` (any shape), and reads no others. Otherwise as read_into().
  /// @throws zero::Error as read_into(), and where the tensor has not that many.
  void read_range_into(const std::string& name, std::int64_t begin, const at::Tensor& out) const;

 private:
  class Mapping;

  std::filesystem::path path_;
  std::shared_ptr<const Mapping> mapping_;
  const char* data_ = nullptr;  // first byte after the header
  std::vector<SafetensorsEntry> entries_;
  std::vector<std::string> names_;
  std::unordered_map<std::string, std::size_t> index_;
  SafetensorsMetadata metadata_;
};

/// The weights of a model as transformers lays them out: a folder with model.safetensors, or with
/// several files and model.safetensors.index.json, whose "weight_map" says which file holds which
/// tensor. Where a folder has both, model.safetensors is taken, as in transformers.
class SafetensorsFolder {
 public:
  /// Opens a folder, or a single .safetensors file. All files are opened and checked.
  /// @throws zero::Error as SafetensorsFile, and where the folder has neither file, the index is
  /// not JSON or has no weight_map, names a file that is not in the folder, or where index and
  /// files disagree on which tensors there are.
  explicit SafetensorsFolder(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }

  /// The names of all tensors: files in the order of their names, each in its own order.
  const std::vector<std::string>& names() const { return names_; }

  bool contains(const std::string& name) const { return index_.contains(name); }

  /// As SafetensorsFile::info(); begin and end count within the tensor's own file.
  const SafetensorsEntry& info(const std::string& name) const;

  /// The file that holds the tensor, for messages. @throws zero::Error as info().
  const std::filesystem::path& file_of(const std::string& name) const { return find(name).path(); }

  /// The metadata of the first file.
  const SafetensorsMetadata& metadata() const { return files_.front().metadata(); }

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
  std::unordered_map<std::string, std::size_t> index_;  // name to position in files_
};

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

/// Tensors with their names, in the order in which they are to be saved.
using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

/// Writes all of `tensors`, each with its own dtype, to the file `path`.
/// @throws zero::Error as SafetensorsWriter.
void save_safetensors(const std::filesystem::path& path, const NamedTensors& tensors,
                      const SafetensorsMetadata& metadata = {{"format", "pt"}});

/// Writes all of `tensors`, each with its own dtype, to `folder`, in files of at most `max_bytes`.
/// @throws zero::Error as SafetensorsFolderWriter.
void save_safetensors_folder(const std::filesystem::path& folder, const NamedTensors& tensors,
                             std::int64_t max_bytes = SafetensorsFolderWriter::kDefaultMaxBytes,
                             const SafetensorsMetadata& metadata = {{"format", "pt"}});

}  // namespace zero::io
