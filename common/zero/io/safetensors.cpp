#include <zero/io/safetensors.hpp>
#include <zero/io/safetensors_format.hpp>

namespace zero::io {

namespace fs = std::filesystem;

void save_safetensors(const fs::path& path, const NamedTensors& tensors,
                      const SafetensorsMetadata& metadata) {
  SafetensorsWriter writer(path, safetensors::specs_of(tensors, path.string()), metadata);
  for (const auto& [name, tensor] : tensors) writer.write(name, tensor);
  writer.finish();
}

void save_safetensors_folder(const fs::path& folder, const NamedTensors& tensors,
                             std::int64_t max_bytes, const SafetensorsMetadata& metadata) {
  SafetensorsFolderWriter writer(folder, safetensors::specs_of(tensors, folder.string()), max_bytes,
                                 metadata);
  for (const auto& [name, tensor] : tensors) writer.write(name, tensor);
  writer.finish();
}

}  // namespace zero::io
