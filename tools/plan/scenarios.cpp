// Which stage to take for which model on which machine.

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "report.hpp"
#include "sheet.hpp"

namespace zero::plan {
namespace {

// Parameters, ranks, memory, bandwidth and batch.
constexpr const char* kScenarios[] = {
    "360M 2 24GB 100GB/s 1", "360M 2 24GB 1GB/s 1",   "1.5B 8 80GB 100GB/s 1",
    "1.5B 8 80GB 10GB/s 1",  "1.5B 8 80GB 10GB/s 8",  "1.5B 8 16GB 100GB/s 1",
    "1.5B 8 10GB 100GB/s 1", "7B 8 80GB 100GB/s 1",   "7B 8 40GB 100GB/s 1",
    "7B 8 40GB 10GB/s 1",    "7B 64 24GB 100GB/s 1",  "13B 8 24GB 100GB/s 1",
    "13B 32 24GB 100GB/s 1", "13B 32 24GB 10GB/s 1",  "70B 64 80GB 100GB/s 1",
    "70B 64 80GB 10GB/s 1",  "70B 512 80GB 100GB/s 1"};

}  // namespace

std::string scenarios(Request request) {
  Sheet sheet(Unit::kGB);
  sheet.columns({"parameters", "ranks", "memory", "link", "batch", "take"});
  sheet.columns({"step", "exposed"}, "s").columns({""}, "", "next best");
  sheet.columns({"time"}, "%", "next best").columns({"memory"}, "GB", "next best");
  for (const char* scenario : kScenarios) {
    std::istringstream words(scenario);
    std::string parameters, memory, bandwidth;
    words >> parameters >> request.world_size >> memory >> bandwidth >> request.batch;
    request.model = model_of_size(parse_count(parameters));
    request.memory = parse_memory(memory);
    request.machine.bandwidth = parse_bandwidth(bandwidth);
    const Plan plan = make_plan(request);
    const Choice& choice = plan.choice;
    const auto of = [&](Stage stage) { return plan.stages[static_cast<std::size_t>(stage)]; };
    std::vector<base::Json> row = {parameters, request.world_size, memory, bandwidth,
                                   request.batch};
    if (!choice.stage) {
      row.insert(row.end(), {"none", {}, {}, fmt::format("{} ranks", *choice.ranks_for_all)});
    } else {
      const StagePlan taken = of(*choice.stage);
      row.insert(row.end(), {name(taken.stage), taken.time.total(), taken.time.exposed});
      if (choice.next) {
        const StagePlan other = of(*choice.next);
        row.insert(row.end(), {name(other.stage), other.time.total() / taken.time.total() - 1,
                               other.total() - taken.total()});
      }
    }
    row.resize(11);
    sheet.add(std::move(row));
  }
  return sheet.to_text();
}

}  // namespace zero::plan
