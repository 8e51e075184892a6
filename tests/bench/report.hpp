#pragma once

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include <zero/base/table.hpp>

/// The results of all benchmark programs together.
namespace zero::bench {

/// One benchmark's result.
struct Result {
  std::string program;             ///< "zero1_bench"
  std::vector<std::string> parts;  ///< of its name: {"zero1", "tiny", "ranks:2"}
  std::string error;               ///< why there is no result; empty where there is one
  /// "seconds" (the median repetition), "best_s", "times_measured", and the benchmark's own.
  std::map<std::string, double> numbers;

  std::string name() const;  ///< the parts with slashes between them
  bool has(const std::string& number) const { return numbers.count(number) > 0; }
};

/// Reads what Google Benchmark wrote with --benchmark_out, or what write_results() wrote. A missing
/// or empty file, which Google Benchmark leaves where nothing was selected, holds no results.
/// zero::Error for a file that is neither.
std::vector<Result> read_results(const std::filesystem::path& file);

/// Writes {"project_version": …, …, "benchmarks": [{"program", "name", "seconds", …}, …]}, whole or
/// not at all. `metadata` is base::run_metadata(). zero::Error if it cannot be written.
void write_results(const std::filesystem::path& file, nlohmann::ordered_json metadata,
                   const std::vector<Result>& results);

/// What to print: the chapters' modes, the collectives, the rest, where there are any.
struct Section {
  std::string title;
  base::Table table;
};
std::vector<Section> tables(const std::vector<Result>& results);

}  // namespace zero::bench
