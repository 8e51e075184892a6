#include "token_file_writer.hpp"

#include <ATen/ops/tensor.h>
#include <fmt/format.h>

#include <zero/base/sha256.hpp>

namespace zero::testing {

TokenFileParts parts_of(const data::TokenStream& stream) {
  const std::int64_t vocabulary = stream.vocabulary();
  const at::ScalarType dtype = vocabulary <= 1 << 8    ? at::kByte
                               : vocabulary <= 1 << 16 ? at::kUInt16
                                                       : at::kInt;
  return {{{"ids", at::tensor(at::IntArrayRef(ids_of(stream)), at::kLong).to(dtype)}},
          {{"format", "zero tokens"},
           {"tokenizer", stream.tokenizer_fingerprint()},
           {"vocabulary", std::to_string(vocabulary)}}};
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
