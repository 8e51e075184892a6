#include "token_file_writer.hpp"

#include <ATen/ops/tensor.h>
#include <fmt/format.h>

#include <zero/base/sha256.hpp>

namespace zero::testing {
namespace {

at::Tensor longs(std::span<const std::int64_t> numbers) {
  return at::tensor(at::IntArrayRef(numbers.data(), numbers.size()), at::kLong);
}

}  // namespace

TokenFileParts parts_of(const data::TokenStream& stream) {
  const std::int64_t vocabulary = stream.vocabulary();
  const at::ScalarType dtype = vocabulary <= 1 << 8    ? at::kByte
                               : vocabulary <= 1 << 16 ? at::kUInt16
                                                       : at::kInt;
  return {{{"ids", longs(ids_of(stream)).to(dtype)}},
          {{"format", "zero tokens"},
           {"tokenizer", stream.tokenizer_fingerprint()},
           {"vocabulary", std::to_string(vocabulary)}}};
}

TokenFileParts parts_of(const data::Records& records) {
  TokenFileParts parts = parts_of(records.tokens);
  parts.tensors = {{"offsets", longs(records.offsets)},
                   {"labels", longs(records.labels)},
                   parts.tensors.front()};
  parts.metadata["classes"] = std::to_string(records.classes);
  parts.metadata["pad_id"] = std::to_string(records.pad_id);
  return parts;
}

void write_token_file(const std::filesystem::path& path, const TokenFileParts& parts) {
  base::Sha256 hash;
  for (const auto& [key, value] : parts.metadata) hash.add(fmt::format("{}={}\n", key, value));
  for (const auto& [name, tensor] : parts.tensors)
    hash.add(tensor.const_data_ptr(), tensor.nbytes());
  safetensors::Metadata metadata = parts.metadata;
  metadata["sha256"] = hash.hex();
  safetensors::save(path, parts.tensors, metadata);
}

}  // namespace zero::testing
