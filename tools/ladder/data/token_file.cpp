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

std::int64_t number_of(const File& file, const std::string& key, std::int64_t least,
                       std::int64_t most) {
  const std::string& text = metadata_of(file, key);
  const char* const end = text.data() + text.size();
  std::int64_t number = 0;
  const auto [stop, problem] = std::from_chars(text.data(), end, number);
  if (problem != std::errc() || stop != end || number < least || number > most) {
    refuse(file.path(), fmt::format("states {} {}; it must be a number from {} to {}", key,
                                    shown(text), least, most));
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
                     ids.elements(), number_of(*file, "vocabulary", 1, kLargestVocabulary),
                     metadata_of(*file, "tokenizer"));
  check_ids(*file, tokens);
  return tokens;
}

// The values of a tensor, in place.
std::span<const std::int64_t> numbers_of(const File& file, const std::string& name) {
  const safetensors::Entry& entry = file.info(name);
  const char* const bytes = file.bytes(name).data();
  const bool aligned = reinterpret_cast<std::uintptr_t>(bytes) % alignof(std::int64_t) == 0;
  if (entry.dtype != at::kLong || entry.shape.size() != 1 || !aligned) {
    refuse(file.path(), fmt::format("its {} must be I64 in one dimension, aligned", name));
  }
  return {reinterpret_cast<const std::int64_t*>(bytes), static_cast<std::size_t>(entry.elements())};
}

void check_records(const std::filesystem::path& path, const Records& records) {
  const auto& [tokens, offsets, labels, classes, pad_id, owner] = records;
  if (offsets.size() != labels.size() + 1 || offsets.front() != 0 ||
      offsets.back() != tokens.size()) {
    refuse(path,
           fmt::format("has {} offsets and {} labels; offsets must be one more and go from 0 to {}",
                       offsets.size(), labels.size(), tokens.size()));
  }
  for (std::size_t i = 0; i < labels.size(); ++i) {
    if (offsets[i + 1] <= offsets[i]) {
      refuse(path, fmt::format("has record {} from token {} to {}: no tokens", i, offsets[i],
                               offsets[i + 1]));
    }
    if (labels[i] < 0 || labels[i] >= classes) {
      refuse(path, fmt::format("has label {} on record {}, outside its {} classes", labels[i], i,
                               classes));
    }
  }
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

TokenFile::TokenFile(const std::filesystem::path& path) : path_(path) {
  if (!is_token_file(path)) refuse_other_format(path);
  const auto file = std::make_shared<const File>(path);
  if (metadata_of(*file, "format") != kFormat) refuse_other_format(path);
  if (metadata_of(*file, kChecksum) != checksum_of(*file)) {
    refuse(path, "is damaged: its checksum does not match");
  }
  records_.tokens = tokens_of(file);
  if (!file->metadata().contains("classes")) return;
  records_.classes = number_of(*file, "classes", 1, kLargestVocabulary);
  if (file->metadata().contains("pad_id")) {
    records_.pad_id = number_of(*file, "pad_id", 0, records_.tokens.vocabulary() - 1);
  }
  records_.offsets = numbers_of(*file, "offsets");
  records_.labels = numbers_of(*file, "labels");
  records_.owner = file;
  check_records(path, records_);
  file->mapping().forget(file->mapping().bytes());
}

const Records& TokenFile::records() const {
  if (records_.classes == 0) {
    refuse(path_, "holds a stream of text; labelled records are needed here");
  }
  return records_;
}

const TokenStream& TokenFile::stream() const {
  if (records_.classes > 0) {
    refuse(path_, "holds labelled texts, for a classifier; a stream of text is needed here");
  }
  return records_.tokens;
}

}  // namespace zero::data
