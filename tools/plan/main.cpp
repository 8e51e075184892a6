// The planner: what a model needs under each stage, by formula, and which stage to take. Trains
// nothing and allocates nothing.

#include <iostream>
#include <nlohmann/json.hpp>

#include <zero/base/program.hpp>

#include "options.hpp"
#include "report.hpp"

namespace zero::plan {
namespace {

int run(int argc, char** argv) {
  const Options options = parse(argc, argv);
  if (options.scenarios) {
    std::cout << scenarios(options.request);
    return kFits;
  }
  const Plan plan = make_plan(options.request);
  base::Json json = to_json(plan);
  json["run"] = base::run_metadata(argc, argv);
  std::cout << (options.json == "-" ? json.dump(2) + "\n" : to_text(plan));
  if (!options.json.empty() && options.json != "-") {
    base::write_json(options.json, json);
    std::cout << "\nfigures: " << options.json << "\n";
  }
  return plan.feasible() ? kFits : kNothingFits;
}

}  // namespace
}  // namespace zero::plan

int main(int argc, char** argv) {
  return zero::run_program(
      "plan", [&] { return zero::plan::run(argc, argv); }, zero::plan::kFailed);
}
