// The planner against figures that were worked out by hand, from the sources that its headers name
// and from the lessons: figures.csv.
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <sys/wait.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>
#include <stdexcept>

#include <tools/support/arguments.hpp>
#include <tools/support/json.hpp>
#include <zero/base/error.hpp>
#include <zero/base/program.hpp>

#include "program.hpp"

namespace zero::plan {
namespace {

using ::testing::HasSubstr;

using Quantities = std::map<std::string, tools::Json>;

template <class T>
tools::Json or_none(const std::optional<T>& value) {
  return value ? tools::Json(*value) : tools::Json();
}
tools::Json stage_name(const std::optional<StagePlan>& stage) {
  return stage ? tools::Json(name(stage->stage)) : tools::Json();
}

Quantities of_stage(const StagePlan& s) {
  return {{"parameters", s.states.parameters},
          {"gradients", s.states.gradients},
          {"optimizer", s.states.optimizer},
          {"states", s.states.total()},
          {"transients", s.transients},
          {"activations", s.activations},
          {"all", s.total()},
          {"device", s.inputs.device},
          {"host", s.inputs.host},
          {"bus", s.inputs.bus},
          {"shards", s.sent.shards},
          {"replicas", s.sent.replicas},
          {"tensor", s.sent.tensor},
          {"pipeline", s.sent.pipeline},
          {"sent", s.sent.total()},
          {"compute", s.time.compute},
          {"communication", s.time.communication},
          {"exposed", s.time.exposed},
          {"step", s.time.total()},
          {"break-even", or_none(s.break_even_batch)},
          {"mesh", text(s.mesh)},
          {"fullest", s.fullest},
          {"micro-batches", s.micro_batches},
          {"bubble", s.bubble()}};
}

// By "ROW QUANTITY": rows are those of the tables, "offload" and "plan".
Quantities quantities(const Plan& plan) {
  Quantities all;
  const auto add = [&](const std::string& row, const Quantities& of_row) {
    for (const auto& [what, value] : of_row) all[row + " " + what] = value;
  };
  for (const StagePlan& s : plan.stages) add(s.offloaded ? "offload" : name(s.stage), of_stage(s));
  for (const HostPlan& h : plan.hosts) {
    add(h.name, {{"states", h.states.total()},
                 {"inside", h.sum().inside},
                 {"leaves", h.leaves},
                 {"time", h.seconds},
                 {"pays", or_none(h.pays_from)}});
  }
  add("plan", {{"take", stage_name(plan.choice.taken)},
               {"next", stage_name(plan.choice.next)},
               {"ranks", or_none(plan.choice.ranks_for_all)},
               {"ranks for states", or_none(plan.choice.ranks_for_states)},
               {"lookahead", plan.lookahead.used},
               {"lookahead needed", plan.lookahead.needed}});
  return all;
}

// `value` is as exact as it is written: 0.45 is from 0.445 to 0.455, and 9 is the whole number.
// "none": there is no such row or figure.
void expect_value(const tools::Json& found, const std::string& value) {
  if (!found.is_number()) {
    EXPECT_EQ(found.is_string() ? found.get<std::string>() : "none", value);
    return;
  }
  const std::size_t point = value.find('.');
  const double decimals = point == std::string::npos ? 0 : std::ssize(value) - point - 1.0;
  EXPECT_NEAR(found.get<double>(), std::stod(value), 0.5 * std::pow(10, -decimals));
}

Plan plan_of(const std::string& options) {
  std::istringstream stream("plan " + options);
  const std::vector<std::string> words{std::istream_iterator<std::string>(stream), {}};
  std::vector<const char*> argv;
  for (const std::string& word : words) argv.push_back(word.c_str());
  return make_plan(read_options(static_cast<int>(argv.size()), argv.data()));
}

// What an option of this kind is read as; null if it is refused.
tools::Json read_as(const std::string& kind, const std::string& text) {
  try {
    if (kind == "memory") return parse_memory(text).bytes;
    if (kind == "count") return parse_count(text);
    if (kind == "bandwidth") return parse_bandwidth(text);
    if (kind == "time") return parse_seconds(text);
    if (kind == "speed") return parse_flops(text);
  } catch (const Error&) {
    return {};
  }
  throw std::invalid_argument(kind);
}

// In a process of its own, because a wrong command line ends it.
void expect_refused(const std::string& options, const std::string& words) {
  const auto run = [&] {
    std::exit(run_program("plan", [&] { return plan_of(options).feasible() ? 0 : 3; }));
  };
  const auto refused = [](int status) {
    return WIFEXITED(status) &&
           (WEXITSTATUS(status) == 1 || WEXITSTATUS(status) == tools::kWrongUsage);
  };
  EXPECT_EXIT(run(), refused, HasSubstr(words));
}

// With one space for spaces and ends of lines.
void expect_printed(const std::string& options, const std::string& words) {
  std::istringstream stream(to_text(plan_of(options)));
  const std::vector<std::string> all{std::istream_iterator<std::string>(stream), {}};
  EXPECT_THAT(fmt::format("{}", fmt::join(all, " ")), HasSubstr(words));
}

TEST(PlannedFigures, AreThoseOfTheTable) {
  std::ifstream file("tools/plan/figures.csv");
  std::string line, known;
  Quantities found;
  int lines = 0;
  while (std::getline(file, line)) {
    if (line.starts_with('#')) continue;
    SCOPED_TRACE(line);
    ++lines;
    const std::size_t first = line.find(','), second = line.find(',', first + 1);
    ASSERT_NE(second, std::string::npos) << "not options, a quantity and a value";
    const std::string options = line.substr(0, first);
    const std::string what = line.substr(first + 1, second - first - 1);
    const std::string value = line.substr(second + 1);
    if (what.starts_with("as ")) {
      expect_value(read_as(what.substr(3), options), value);
    } else if (what == "refuses") {
      expect_refused(options, value);
    } else if (what == "prints") {
      expect_printed(options, value);
    } else {
      if (options != known) found = quantities(plan_of(known = options));
      expect_value(found[what], value);
    }
  }
  EXPECT_GT(lines, 200);
}

// "Which stage, when": options, what is taken, seconds of a step and exposed, the next best.
TEST(PlannedFigures, OfTheTableOfThePageAreThePlanners) {
  const std::regex row("\\| `([^`]*)` \\| (\\S+) \\| (\\S+) \\| (\\S+) \\| ([^|]*) \\|");
  std::ifstream page("docs/planner.md");
  int rows = 0;
  std::smatch cells;
  for (std::string line; std::getline(page, line);) {
    if (!line.starts_with("| `--") || !std::regex_match(line, cells, row)) continue;
    SCOPED_TRACE(line);
    ++rows;
    Quantities found = quantities(plan_of(cells[1]));
    const std::string take = cells[2], next = cells[5];
    expect_value(found["plan take"], take);
    if (take == "none") {
      EXPECT_EQ(next, fmt::format("from {} ranks on", found["plan ranks"].get<int>()));
      continue;
    }
    expect_value(found[take + " step"], cells[3]);
    expect_value(found[take + " exposed"], cells[4]);
    expect_value(found["plan next"], next == "-" ? "none" : next);
  }
  EXPECT_EQ(rows, 17);
}

}  // namespace
}  // namespace zero::plan
