#pragma once

#include <cstdint>
#include <filesystem>

#include <zero/safetensors/format.hpp>
#include <zero/safetensors/safetensors.hpp>

namespace zero::testing {

/// Writes all of `tensors`, each with its own dtype, to `folder`, in files of at most `max_bytes`.
inline void save_safetensors_folder(
    const std::filesystem::path& folder, const safetensors::NamedTensors& tensors,
    std::int64_t max_bytes = safetensors::FolderWriter::kDefaultMaxBytes,
    const safetensors::Metadata& metadata = {{"format", "pt"}}) {
  safetensors::FolderWriter writer(folder, safetensors::specs_of(tensors), max_bytes, metadata);
  for (const auto& [name, tensor] : tensors) writer.write(name, tensor);
  writer.finish();
}

}  // namespace zero::testing
