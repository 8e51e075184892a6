// The planner: what a model needs under each stage, by formula, and which stage to take. Trains
// nothing and allocates nothing.

#include <iostream>
#include <nlohmann/json.hpp>

#include <zero/base/json.hpp>
#include <zero/base/program.hpp>

#include "options.hpp"

namespace zero::plan {
namespace {

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

int run(int argc, char** argv) {
  Options options = parse(argc, argv);
  if (options.scenarios) {
    std::cout << scenarios(options.request);
    return kFits;
  }
  const Plan plan = make_plan(options.request);
  say(options, to_text(plan), to_json(plan), argc, argv);
  return plan.feasible() ? kFits : kNothingFits;
}

}  // namespace
}  // namespace zero::plan

int main(int argc, char** argv) {
  return zero::run_program(
      "plan", [&] { return zero::plan::run(argc, argv); }, zero::plan::kFailed);
}
