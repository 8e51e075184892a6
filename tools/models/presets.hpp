#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include <zero/nn/llama_config.hpp>

namespace zero::tools {

/// The names that preset() knows: "llama-1.5b", "llama-20m", "llama-360m", "smollm2-135m",
/// "smollm2-360m", "tiny".
const std::vector<std::string>& preset_names();

/// A known shape by name. The two SmolLM2 shapes are those of the published models (vocabulary
/// 49152); "tiny" reads bytes (vocabulary 256) and trains in seconds. "llama-1.5b" has the depth
/// and width of GPT-2 XL (48 layers, 1600, 25 heads) and exactly 1,500,000,000 parameters: the
/// vocabulary is chosen to fit. "llama-360m" is "smollm2-360m" with 16 heads and 4 key/value heads
/// of 60 instead of 15 and 5 of 64, so that 2 or 4 tensor ranks can share them. "llama-20m" reads
/// bytes and has 19,405,312 parameters, of which the root has 0.7 %: for slow links. Throws
/// zero::Error for another name, with the known ones.
nn::LlamaConfig preset(std::string_view name);

/// The text of `folder`/config.json. Throws zero::Error, naming the file, if it is missing or
/// cannot be read.
std::string read_config_text(const std::filesystem::path& folder);

}  // namespace zero::tools
