#pragma once

#include <filesystem>
#include <string>

namespace zero::plots {

/// Whether a picture was made, and what the script printed: the names of its files, or why not.
struct Picture {
  bool drawn = false;
  std::string said;
};

/// Runs `script`, one of the plot_*.py of this folder, on the JSON file `json`, with the Python
/// that ZERO_PYTHON names (else python3). No shell is in between, so that a path may hold anything.
/// Blocks until it has ended. Throws nothing: a picture that cannot be drawn is not the end of a
/// program that has its figures.
Picture draw(const std::filesystem::path& script, const std::filesystem::path& json);

}  // namespace zero::plots
