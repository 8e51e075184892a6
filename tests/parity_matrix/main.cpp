// parity_matrix FOLDER   prints, for every strategy and variant and every world size, how many
// parity
//                        tests compared it with plain DDP and found the same bits; exit code 1 if
//                        there is a cell without any, or one that fewer tests filled than others.
//
// The rows come from the chapters, not from the tests: a strategy that no test ran is an empty
// cell.

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <set>
#include <string>

#include <tools/ladder/registry.hpp>
#include <zero/base/error.hpp>

namespace {

namespace fs = std::filesystem;

constexpr int kWorldSizes[] = {1, 2, 3, 4, 8};

// Tests by (mode, world size), from files named mode@size@test.
using Cells = std::map<std::pair<std::string, int>, std::set<std::string>>;

Cells read_cells(const fs::path& folder) {
  Cells cells;
  std::error_code missing;
  for (const auto& entry : fs::directory_iterator(folder, missing)) {
    const std::string name = entry.path().filename().string();
    const std::size_t first = name.find('@'), second = name.find('@', first + 1);
    if (second == std::string::npos) continue;
    cells[{name.substr(0, first), std::stoi(name.substr(first + 1, second - first - 1))}].insert(
        name.substr(second + 1));
  }
  return cells;
}

int print(const Cells& cells) {
  zero::tools::Registry registry;
  zero::tools::register_all_chapters(registry);
  std::map<int, std::size_t> most;  // by world size
  for (const auto& [key, tests] : cells)
    most[key.second] = std::max(most[key.second], tests.size());
  int bad = 0;
  fmt::print("parity tests that found the bits of plain DDP:\n{:20}", "");
  for (const int size : kWorldSizes) fmt::print("{:>10}", fmt::format("{} ranks", size));
  fmt::print("\n");
  for (const std::string& mode : registry.exact_modes()) {
    fmt::print("{:20}", mode);
    for (const int size : kWorldSizes) {
      const auto found = cells.find({mode, size});
      const std::size_t count = found == cells.end() ? 0 : found->second.size();
      const bool complete = count > 0 && count == most[size];
      fmt::print("{:>10}",
                 count == 0 ? "EMPTY" : fmt::format("{}{}", count, complete ? "" : " (!)"));
      bad += complete ? 0 : 1;
    }
    fmt::print("\n");
  }
  if (bad > 0) {
    fmt::print("{} cells are empty, or were filled by fewer tests than others (!)\n", bad);
  }
  return bad == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    fmt::print(stderr, "usage: parity_matrix FOLDER\n");
    return 2;
  }
  try {
    return print(read_cells(argv[1]));
  } catch (const std::exception& error) {
    fmt::print(stderr, "parity_matrix: {}\n", zero::message_of(error));
    return 2;
  }
}
