// The planner: what a model needs under each stage, by formula, and which stage to take. Trains
// nothing and allocates nothing.

#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>

#include <tools/ladder/ladder_report.hpp>
#include <tools/plots/picture.hpp>
#include <zero/base/error.hpp>
#include <zero/base/json.hpp>
#include <zero/base/program.hpp>

#include "check.hpp"
#include "options.hpp"
#include "tables.hpp"

namespace zero::plan {
namespace {

constexpr const char* kDefaultJson = "out/plan.json";

// What is said goes to the terminal, or gives way to JSON there.
void say(const Options& options, const std::string& text, base::Json json, int argc, char** argv) {
  json["run"] = base::run_metadata(argc, argv);
  if (options.json == "-") {
    std::cout << json.dump(2) << "\n";
    return;
  }
  std::cout << text;
  if (!options.json.empty()) {
    base::write_json(options.json, json);
    std::cout << "\nfigures: " << options.json << "\n";
  }
}

int check_ladder(const Options& options, int argc, char** argv) {
  const base::Json json = base::read_json(options.check);
  const auto report = [&] {
    try {
      return ladder::report_from_json(json);
    } catch (const Error& error) {
      throw Error(fmt::format("{} is not a report of the ladder: {}", options.check, error.what()));
    }
  }();
  const Check check = options.model_was_named ? check_against(report, options.request.model)
                                              : check_against(report);
  say(options, to_text(check), to_json(check), argc, argv);
  std::cout.flush();
  for (const std::string& failure : check.failures) log_error("FAILED " + failure);
  return check.failures.empty() ? kFits : kFailed;
}

void plot(const std::string& json) {
  const plots::Picture picture = plots::draw("tools/plots/plot_plan.py", json);
  if (!picture.drawn) throw Error("no picture was made (matplotlib is needed): " + picture.said);
  std::cout << picture.said;
}

int run(int argc, char** argv) {
  Options options = parse(argc, argv);
  if (options.tables) {
    std::cout << tables_text();
    return kFits;
  }
  if (!options.check.empty()) return check_ladder(options, argc, argv);
  if (options.plot && options.json == "-") {
    throw Error("--plot draws from a file: give --json a name, or leave it out");
  }
  if (options.plot && options.json.empty()) options.json = kDefaultJson;
  const Plan plan = make_plan(options.request);
  say(options, to_text(plan), to_json(plan), argc, argv);
  if (options.plot) plot(options.json);
  return plan.feasible() ? kFits : kNothingFits;
}

}  // namespace
}  // namespace zero::plan

int main(int argc, char** argv) {
  return zero::run_program(
      "plan", [&] { return zero::plan::run(argc, argv); }, zero::plan::kFailed);
}
