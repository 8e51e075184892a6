#include "presets.hpp"

#include <fmt/format.h>

#include <map>
#include <ranges>

#include <zero/base/error.hpp>
#include <zero/base/mapped_file.hpp>
#include <zero/base/names.hpp>

namespace zero::tools {
namespace {

const std::map<std::string, nn::LlamaConfig, std::less<>>& presets() {
  // vocabulary, hidden, layers, heads, key/value heads, head size, MLP
  static const std::map<std::string, nn::LlamaConfig, std::less<>> all = {
      {"llama-1.5b", {40379, 1600, 48, 25, 25, 64, 4096}},
      {"llama-20m", {256, 512, 6, 8, 8, 64, 1408}},
      {"llama-360m", {49152, 960, 32, 16, 4, 60, 2560}},
      {"smollm2-135m", {49152, 576, 30, 9, 3, 64, 1536}},
      {"smollm2-360m", {49152, 960, 32, 15, 5, 64, 2560}},
      {"tiny", {}},
  };
  return all;
}

}  // namespace

const std::vector<std::string>& preset_names() {
  static const auto keys = presets() | std::views::keys;
  static const std::vector<std::string> names(keys.begin(), keys.end());
  return names;
}

nn::LlamaConfig preset(std::string_view name) {
  const auto found = presets().find(name);
  if (found != presets().end()) return found->second;
  throw Error(base::unknown_name_message("model", name, preset_names()));
}

std::string read_config_text(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / "config.json";
  return base::read_file(
      path, fmt::format("{} (a folder as save_pretrained writes it is needed, with config.json and "
                        "model.safetensors, or several files and model.safetensors.index.json)",
                        path.string()));
}

}  // namespace zero::tools
