#pragma once

#include <cstdint>
#include <filesystem>

#include <zero/io/safetensors.hpp>
#include <zero/io/safetensors_format.hpp>

namespace zero::testing {

/// Writes all of `tensors`, each with its own dtype, to `folder`, in files of at most `max_bytes`.
inline void save_safetensors_folder(
    const std::filesystem::path& folder, const io::NamedTensors& tensors,
    std::int64_t max_bytes = io::SafetensorsFolderWriter::kDefaultMaxBytes,
    const io::SafetensorsMetadata& metadata = {{"format", "pt"}}) {
  io::SafetensorsFolderWriter writer(folder, io::safetensors::specs_of(tensors, folder.string()),
                                     max_bytes, metadata);
  for (const auto& [name, tensor] : tensors) writer.write(name, tensor);
  writer.finish();
}

}  // namespace zero::testing
