// Which stage to take for which model on which machine.

#include <fmt/format.h>

#include <zero/base/table.hpp>

#include "planner.hpp"

namespace zero::plan {
namespace {

struct Scenario {
  const char* parameters;
  std::int64_t ranks;
  const char *memory, *bandwidth;
  std::int64_t batch;
};

constexpr Scenario kScenarios[] = {
    {"360M", 2, "24GB", "100GB/s", 1},  {"360M", 2, "24GB", "1GB/s", 1},
    {"1.5B", 8, "80GB", "100GB/s", 1},  {"1.5B", 8, "80GB", "10GB/s", 1},
    {"1.5B", 8, "80GB", "10GB/s", 8},   {"1.5B", 8, "16GB", "100GB/s", 1},
    {"1.5B", 8, "10GB", "100GB/s", 1},  {"7B", 8, "80GB", "100GB/s", 1},
    {"7B", 8, "40GB", "100GB/s", 1},    {"7B", 8, "40GB", "10GB/s", 1},
    {"7B", 64, "24GB", "100GB/s", 1},   {"13B", 8, "24GB", "100GB/s", 1},
    {"13B", 32, "24GB", "100GB/s", 1},  {"13B", 32, "24GB", "10GB/s", 1},
    {"70B", 64, "80GB", "100GB/s", 1},  {"70B", 64, "80GB", "10GB/s", 1},
    {"70B", 512, "80GB", "100GB/s", 1},
};

}  // namespace

std::string scenarios(Request request) {
  using base::Align;
  base::Table table({{"parameters"},
                     {"ranks"},
                     {"memory"},
                     {"link"},
                     {"batch"},
                     {"take", Align::kLeft},
                     {"step", Align::kRight, "s"},
                     {"exposed", Align::kRight, "s"},
                     {"", Align::kLeft, "", "next best"},
                     {"time", Align::kRight, "%", "next best"},
                     {"memory", Align::kRight, "GB", "next best"}});
  for (const Scenario& s : kScenarios) {
    request.model = model_of_size(parse_count(s.parameters));
    request.world_size = s.ranks;
    request.memory = parse_memory(s.memory);
    request.machine.bandwidth = parse_bandwidth(s.bandwidth);
    request.batch = s.batch;
    const Plan plan = make_plan(request);
    const Choice& choice = plan.choice;
    std::vector<std::string> row = {s.parameters, fmt::format("{}", s.ranks), s.memory, s.bandwidth,
                                    fmt::format("{}", s.batch)};
    if (choice.stage) {
      const StagePlan& taken = plan.stages[static_cast<std::size_t>(*choice.stage)];
      row.insert(row.end(), {name(taken.stage), base::fixed(taken.time.total(), 3),
                             base::fixed(taken.time.exposed, 3)});
      if (choice.next) {
        const StagePlan& next = plan.stages[static_cast<std::size_t>(*choice.next)];
        const double longer = next.time.total() / taken.time.total() - 1;
        const auto more = static_cast<double>(next.total() - taken.total());
        row.insert(row.end(), {name(next.stage), fmt::format("{:+.1f}", 100 * longer),
                               fmt::format("{:+.2f}", more / 1e9)});
      }
    } else {
      row.insert(row.end(), {"none", "-", "-"});
      if (choice.ranks_for_all) row.push_back(fmt::format("{} ranks", *choice.ranks_for_all));
    }
    row.resize(11, "-");
    table.add_row(std::move(row));
  }
  return table.to_text();
}

}  // namespace zero::plan
