// Puts the results of several benchmark programs together: one file, one table.
//   bench_report [--json out/bench.json] [--markdown] RESULT.json...

#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include <zero/base/error.hpp>
#include <zero/base/json.hpp>

#include "report.hpp"

int main(int argc, char** argv) {
  using namespace zero::bench;
  std::vector<std::string> files;
  std::string json;
  bool markdown = false;
  CLI::App app{"Puts the results of several benchmark programs together."};
  app.add_option("files", files, "what the programs wrote with --benchmark_out, or --json of this")
      ->required();
  app.add_option("--json", json, "write all results to this file");
  app.add_flag("--markdown", markdown, "print the table as Markdown");
  CLI11_PARSE(app, argc, argv);
  try {
    std::vector<Result> all;
    for (const std::string& file : files) {
      const std::vector<Result> some = read_results(file);
      all.insert(all.end(), some.begin(), some.end());
    }
    if (all.empty()) throw zero::Error("no benchmark was run: no name matches the filter");
    for (const Section& section : tables(all)) {
      fmt::print("\n{}\n\n{}", section.title,
                 markdown ? section.table.to_markdown() : section.table.to_text());
    }
    for (const Result& result : all) {
      if (!result.error.empty()) fmt::print("\n{}: {}\n", result.name(), result.error);
    }
    if (!json.empty()) {
      write_results(json, zero::base::run_metadata(argc, argv), all);
      fmt::print("\nJSON: {}\n", json);
    }
  } catch (const zero::Error& error) {
    fmt::print(stderr, "error: {}\n", message_of(error));
    return 1;
  }
  return 0;
}
