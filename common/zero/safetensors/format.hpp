#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include <zero/base/error.hpp>
#include <zero/safetensors/spec.hpp>

/// What the reader and the writer of safetensors share: the header, and iterating over a tensor in
/// pieces. Nothing here opens a file; users include safetensors.hpp.
namespace zero::safetensors {

/// The bytes before the header, which hold its length.
inline constexpr std::uint64_t kLengthBytes = 8;
inline constexpr const char* kMetadataKey = "__metadata__";
/// Names of the single file in a folder of weights, and of the index of several.
inline constexpr const char* kSingleFile = "model.safetensors";
inline constexpr const char* kIndexFile = "model.safetensors.index.json";

struct Header {
  std::vector<Entry> entries;  ///< in the order of their bytes
  Metadata metadata;
};

/// Throws zero::Error with what is wrong with the file or folder at `path`.
[[noreturn]] inline void refuse(const std::filesystem::path& path, const std::string& reason) {
  throw Error(fmt::format("{}: {}", path.string(), reason));
}

/// Parses and checks the JSON of a header against `data_bytes`, the bytes that follow it in the
/// file. @throws zero::Error with a message that begins with `path`.
Header parse_header(std::string_view json, std::uint64_t data_bytes, const std::string& path);

/// Lays tensors out one after the other, those with larger elements first, otherwise in the given
/// order.
/// @throws zero::Error for what a Writer refuses in its specs.
std::vector<Entry> lay_out(const std::vector<Spec>& specs, const std::string& path);

/// Everything that comes before the data: length, JSON, and spaces up to a multiple of 8 bytes.
std::string make_header(const std::vector<Entry>& entries, const Metadata& metadata);

/// An object of JSON. @throws zero::Error with a message that begins with `path`.
nlohmann::json parse(std::string_view text, const std::string& path);

/// `name` as a JSON string, shortened if it is long: no control character reaches a terminal.
std::string shown(std::string_view name);

/// "[2, 3]"
std::string shape_text(const std::vector<std::int64_t>& shape);

/// Whether tensors of dtype `from` may be copied into tensors of dtype `to`.
bool convertible(at::ScalarType from, at::ScalarType to);

/// Name, dtype and shape of each tensor. @throws zero::Error, with a message that begins with
/// `path`, for one without values in memory: it is undefined, sparse, on the device meta, or its
/// bytes are not there.
std::vector<Spec> specs_of(const NamedTensors& tensors, const std::string& path = "the tensors");

/// Throws zero::Error unless `tensor` can be copied from or to as `spec` says: it has values in
/// memory (see above), this shape, and this dtype or a convertible one. The message calls the
/// tensor `what`.
void check_tensor(const at::Tensor& tensor, const Spec& spec, const std::string& path,
                  std::string_view what);

/// The position of the tensor `name`. @throws zero::Error, with the first of the known names, if
/// there is none.
std::size_t position_of(const std::string& name, const Index& index,
                        const std::filesystem::path& path);

/// The bytes of a piece of a tensor as they are in a file, and the number of its first element.
using UsePiece = std::function<void(char* bytes, std::int64_t first, std::size_t size)>;
/// Calls `use` for one piece of `tensor` after the other, in row-major order, in the dtype of
/// `spec`; with `reads`, `use` fills in the bytes. Autograd does not see it. Needs at most
/// kScratchBytes, and a tensor that is not contiguous once more.
void for_each_piece(const at::Tensor& tensor, const Spec& spec, bool reads, const UsePiece& use);

}  // namespace zero::safetensors
