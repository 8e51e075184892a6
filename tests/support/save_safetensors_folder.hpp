#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include <zero/base/atomic_file.hpp>
#include <zero/safetensors/safetensors.hpp>

namespace zero::testing {

/// Writes `tensors` to `folder`, made if need be, as transformers does for a model in several
/// files: in files of `per_file` tensors, with an index. By default in one file without an index.
inline void save_safetensors_folder(const std::filesystem::path& folder,
                                    const safetensors::NamedTensors& tensors,
                                    std::size_t per_file = 0) {
  std::filesystem::create_directories(folder);
  if (per_file == 0) return safetensors::save(folder / "model.safetensors", tensors);
  const std::size_t files = (tensors.size() + per_file - 1) / per_file;
  nlohmann::json weight_map;
  for (std::size_t i = 0; i < files; ++i) {
    const std::string name = fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, files);
    const auto begin = tensors.begin() + static_cast<std::ptrdiff_t>(i * per_file);
    const auto left = static_cast<std::size_t>(tensors.end() - begin);
    const safetensors::NamedTensors part(
        begin, begin + static_cast<std::ptrdiff_t>(std::min(per_file, left)));
    safetensors::save(folder / name, part);
    for (const auto& [tensor, value] : part) weight_map[tensor] = name;
  }
  base::write_file(folder / "model.safetensors.index.json",
                   nlohmann::json{{"weight_map", weight_map}}.dump());
}

}  // namespace zero::testing
