#include "token_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <zero/base/error.hpp>
#include <zero/base/mapped_file.hpp>
#include <zero/base/sha256.hpp>
#include <zero/safetensors/file.hpp>
#include <zero/safetensors/format.hpp>

namespace zero::data {
namespace {

using safetensors::File;
using safetensors::shown;

constexpr const char* kFormat = "zero tokens";
constexpr const char* kChecksum = "sha256";

[[noreturn]] void refuse(const std::filesystem::path& path, const std::string& why) {
  throw Error(fmt::format("token file {}: {}", path.string(), why));
}

[[noreturn]] void refuse_other_format(const std::filesystem::path& path) {
  refuse(path, "is not a token file; make one with ./run data");
}

const std::string& metadata_of(const File& file, const std::string& key) {
  const auto found = file.metadata().find(key);
  if (found == file.metadata().end()) {
    refuse(file.path(), fmt::format("its metadata has no {}", key));
  }
  return found->second;
}

std::int64_t vocabulary_of(const File& file) {
  const std::string& text = metadata_of(file, "vocabulary");
  const char* const end = text.data() + text.size();
  std::int64_t number = 0;
  const auto [stop, problem] = std::from_chars(text.data(), end, number);
  if (problem != std::errc() || stop != end || number < 1 || number > kLargestVocabulary) {
    refuse(file.path(), fmt::format("states vocabulary {}; it must be a number from 1 to {}",
                                    shown(text), kLargestVocabulary));
  }
  return number;
}

// Of the other metadata and of all tensors. Releases the pages.
std::string checksum_of(const File& file) {
  base::Sha256 hash;
  for (const auto& [key, value] : file.metadata()) {
    if (key != kChecksum) hash.add(fmt::format("{}={}\n", key, value));
  }
  for (const std::string& name : file.names()) file.mapping().add_to(hash, file.bytes(name));
  return hash.hex();
}

void check_ids(const File& file, const TokenStream& tokens) {
  constexpr std::int64_t kPiece = std::int64_t{1} << 21;  // ids read before pages are released
  std::vector<std::int64_t> ids;
  for (std::int64_t at = 0; at < tokens.size(); at += kPiece) {
    ids.resize(static_cast<std::size_t>(std::min(kPiece, tokens.size() - at)));
    tokens.copy(at, ids);
    const auto outside =
        std::ranges::find_if(ids, [&](std::int64_t id) { return id >= tokens.vocabulary(); });
    if (outside != ids.end()) {
      refuse(file.path(), fmt::format("has token id {} at place {}, outside its vocabulary of {}",
                                      *outside, at + (outside - ids.begin()), tokens.vocabulary()));
    }
    file.mapping().forget(file.mapping().bytes());
  }
}

TokenStream tokens_of(const std::shared_ptr<const File>& file) {
  const safetensors::Entry& ids = file->info("ids");
  const bool known = ids.dtype == at::kByte || ids.dtype == at::kUInt16 || ids.dtype == at::kInt;
  if (!known || ids.shape.size() != 1) {
    refuse(file->path(), "its ids must be U8, U16 or I32 in one dimension");
  }
  TokenStream tokens(file, file->bytes("ids").data(), static_cast<int>(c10::elementSize(ids.dtype)),
                     ids.elements(), vocabulary_of(*file), metadata_of(*file, "tokenizer"));
  check_ids(*file, tokens);
  return tokens;
}

}  // namespace

bool is_token_file(const std::filesystem::path& path) {
  using namespace std::string_view_literals;
  const base::MappedFile file(path, fmt::format("file {}", path.string()));
  const std::string_view first = file.bytes().substr(0, 23);
  // The length of the header, and what every header begins with.
  return path.extension() == ".tokens" || first.substr(0, 8).ends_with("\0\0\0\0"sv) ||
         first.ends_with("{\"__metadata__\"");
}

TokenStream read_token_file(const std::filesystem::path& path) {
  if (!is_token_file(path)) refuse_other_format(path);
  const auto file = std::make_shared<const File>(path);
  if (metadata_of(*file, "format") != kFormat) refuse_other_format(path);
  if (metadata_of(*file, kChecksum) != checksum_of(*file)) {
    refuse(path, "is damaged: its checksum does not match");
  }
  return tokens_of(file);
}

}  // namespace zero::data
