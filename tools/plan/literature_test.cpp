// literature_tables.md has the figures that papers and courses quote. Every cell of its tables is
// computed here, from the name of its row and the heading of its column.
#include <fmt/ranges.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <map>
#include <numeric>

#include <tools/models/presets.hpp>
#include <tools/support/by_count.hpp>
#include <tools/support/table.hpp>
#include <zero/base/names.hpp>
#include <zero/nn/defer.hpp>
#include <zero/nn/llama.hpp>
#include <zero/nn/parameters.hpp>
#include <zero/train/owners.hpp>

#include "exposed_time.hpp"
#include "planner.hpp"

namespace zero::plan {
namespace {

using tools::fixed;
using Cells = std::vector<std::string>;

struct Place {
  const Cells& row;
  std::size_t column;
  const std::string& heading;
};
using Cell = std::function<std::string(const Place&)>;
struct ComputedTable {
  std::string first_heading;
  Cell cell;
};

constexpr std::int64_t kOneAndAHalfBillion = 3 * kBillion / 2;

// ---- how names are read, and figures written ----

std::int64_t number_in(const std::string& text) {
  std::string digits;
  std::ranges::copy_if(text, std::back_inserter(digits), [](char c) { return std::isdigit(c); });
  return std::stoll(digits);
}
Stage stage_of(const std::string& words) {
  return *std::ranges::find_if(kStages, [&](Stage s) { return words.starts_with(name(s)); });
}

std::string total(const States& states, Unit unit, int decimals = 2) {
  return in(static_cast<double>(states.total()), unit, decimals);
}
std::string yes(bool is) { return is ? "yes" : "no"; }

// Shares of N parameters on N ranks are equal.
double bytes_per_parameter(const Policy& policy, Stage stage, std::int64_t n) {
  return static_cast<double>(model_states(n, policy, stage, n).total()) / static_cast<double>(n);
}
double ratio_to_ddp(const Policy& policy, Stage stage, std::int64_t n) {
  return bytes_per_parameter(policy, stage, n) / static_cast<double>(policy.total());
}
States offloaded(std::int64_t parameters, std::int64_t n) {
  States states = model_states(parameters, mixed(), Stage::kZero3, n);
  states.optimizer = 0;
  return states;
}

// ---- tables ----

nn::LlamaConfig smollm2_360m(std::int64_t classes) {
  nn::LlamaConfig config = tools::preset("smollm2-360m");
  config.classes = classes;
  return config;
}
// Its tensors, without storage.
nn::ParameterList tensors_of_smollm2_360m(std::int64_t classes) {
  return nn::list_parameters(
      *nn::defer([&] { return std::make_shared<nn::Llama>(smollm2_360m(classes)); }));
}

Cell ladder(std::int64_t classes) {
  return [classes](const Place& p) {
    const Stage stage = stage_of(p.row[0]);
    const States s = model_states(smollm2_360m(classes).parameters(), fp32(), stage, 2);
    if (p.column == 5) return fixed(ratio_to_ddp(fp32(), stage, 2), 3);
    const std::int64_t bytes[] = {s.parameters, s.gradients, s.optimizer, s.total()};
    return in(static_cast<double>(bytes[p.column - 1]), Unit::kMiB);
  };
}

// Bytes of fp32 and their fullest rank's, where tensors have owners.
std::pair<double, double> all_and_fullest(int ranks, bool by_size) {
  std::vector<std::int64_t> sizes;
  for (const nn::Parameter& p : tensors_of_smollm2_360m(/*classes=*/0).parameters) {
    sizes.push_back(p.bytes());
  }
  const auto n = static_cast<std::size_t>(ranks);
  const std::vector<int> owners =
      by_size ? train::assign_owners(sizes, ranks) : tools::owners_by_count(sizes.size(), n);
  std::vector<double> owned(static_cast<std::size_t>(ranks), 0);
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    owned[static_cast<std::size_t>(owners[i])] += static_cast<double>(sizes[i]);
  }
  return {std::accumulate(owned.begin(), owned.end(), 0.0), std::ranges::max(owned)};
}

std::string owners(const Place& p) {
  const auto ranks = static_cast<int>(number_in(p.heading));
  const auto [all, fullest] = all_and_fullest(ranks, p.row[0] == "by size");
  return fixed(fullest * ranks / all, 4);
}

std::string formulas(const Place& p) {
  const Stage stage = stage_of(p.row[0]);
  if (p.heading == "mixed" || p.heading == "fp32") return p.row[p.column];  // in words
  if (p.heading == "N large") {
    return fmt::format("{:.0f} P", bytes_per_parameter(mixed(), stage, kMostRanks));
  }
  const std::int64_t n = number_in(p.heading);
  return fmt::format("{:.2f} P, {:.1f} % less", bytes_per_parameter(mixed(), stage, n),
                     100 * (1 - ratio_to_ddp(mixed(), stage, n)));
}

std::string ratios(const Place& p) {
  const bool is_fp32 = p.column <= 3;
  return fixed(ratio_to_ddp(is_fp32 ? fp32() : mixed(), kStages[p.column - (is_fp32 ? 0 : 3)],
                            number_in(p.row[0])),
               6);
}

Cell states(std::int64_t parameters, const Policy& policy, Unit unit, int decimals) {
  return [=](const Place& p) {
    return total(model_states(parameters, policy, stage_of(p.heading), number_in(p.row[0])), unit,
                 decimals);
  };
}

std::string with_offload(const Place& p) {
  const States s = offloaded(kOneAndAHalfBillion, number_in(p.row[0]));
  if (p.heading.starts_with("under")) {
    return yes(s.total() < (p.heading.ends_with("GiB") ? kGiB : kGB));
  }
  return total(s, p.column == 1 ? Unit::kGiB : Unit::kGB);
}

std::string activations(const Place& p) {
  Request request;
  request.model = model_of_size(7 * kBillion, /*layers=*/32);
  request.model.shape = {.layers = 32, .hidden = 4096, .attention = 4096, .mlp = 4 * 4096};
  request.batch = 4;
  request.recompute = p.row[0].ends_with("recomputed");
  const StagePlan plan = plan_stage(request, Stage::kZero3, data_mesh(Stage::kZero3, 64));
  return in(static_cast<double>(p.row[0].starts_with("model states") ? plan.states.total()
                                                                     : plan.activations),
            p.heading == "GB" ? Unit::kGB : Unit::kGiB);
}

std::string traffic(const Place& p) {
  static const std::map<std::string, Scheme> schemes = {
      {"DDP", Scheme::kDdp},
      {"ZeRO-1 naive", Scheme::kZero1Naive},
      {"ZeRO-1", Scheme::kZero1},
      {"ZeRO-2", Scheme::kZero2},
      {"ZeRO-2 placeholder", Scheme::kZero2Placeholder},
      {"ZeRO-3", Scheme::kZero3},
      {"ZeRO-3 kept", Scheme::kZero3Kept}};
  if (p.column == 1) return p.row[1];  // in words
  const std::int64_t n = p.column == 2 ? 2 : number_in(p.heading);
  return fixed(sent(schemes.at(p.row[0]), {1, 1}, n).total(), 3);
}

std::string volumes(const Place& p) {
  const plan::Traffic v =
      volume(scheme_of(stage_of(p.row[0])), copies(kOneAndAHalfBillion, mixed()), 8);
  const double bytes[] = {v.total(), v.gradients_reduced,
                          v.gradients_gathered + v.parameters_gathered};
  return in(bytes[p.column - 1], Unit::kGiB);
}

std::string fit_24_gb(const Place& p) {
  const std::int64_t n = number_in(p.row[1]);
  const States s = p.row[0].ends_with("offload")
                       ? offloaded(13 * kBillion, n)
                       : model_states(13 * kBillion, mixed(), stage_of(p.row[0]), n);
  if (p.column == 1) return p.row[1];
  return p.column == 2 ? total(s, Unit::kGB) : yes(s.total() <= 24 * kGB);
}

std::string fit_16_gb(const Place& p) {
  const auto on = [&](std::int64_t n) {
    return model_states(kOneAndAHalfBillion, mixed(), stage_of(p.row[0]), n);
  };
  if (p.column == 1) return total(on(kMostRanks), Unit::kGB);
  const auto fewest = fewest_ranks(16 * kGB, 1, [&](std::int64_t n) { return on(n).total(); });
  return fewest ? fmt::format("{} ranks", *fewest) : "never";
}

std::string lookahead(const Place& p) {
  constexpr double kCompute = 10e-3;
  const double gather =
      communication_seconds(copies(200'000'000, mixed()).parameters, 0,
                            {.bandwidth = 1e9 * static_cast<double>(number_in(p.row[0]))});
  const auto k = static_cast<std::int64_t>(std::ceil(gather / kCompute));
  const auto all = [](double seconds) { return std::vector<double>(32, seconds); };
  if (p.heading == "k*") return fmt::format("{}", k);
  return fixed(
      1e3 * (p.column == 1 ? gather : exposed_seconds({all(gather), all(kCompute), all(0)}, k)), 0);
}

std::string break_even(const Place& p) {
  const Machine machine{.bandwidth = 100e9, .latency = 10e-6, .flops = 150e12};
  const std::int64_t parameters = number_in(p.row[0]) * kBillion;
  const double seconds =
      communication_seconds(volume(Scheme::kZero3, copies(parameters, mixed()), 2).total(),
                            /*collectives, three for each of 32 layers=*/96, machine);
  if (p.column == 1) return fixed(seconds * 1e3, 0);
  return fmt::format(
      "{}", *break_even_batch(seconds, parameters, p.column == 2 ? 2048 : 8192, 0.05, machine));
}

std::string tensor_parallelism(const Place& p) {
  const std::int64_t hidden = number_in(p.row[0]), layer = 12 * hidden * hidden;
  if (p.column == 1) return base::with_thousands(layer);
  if (p.column == 2) {
    return base::with_thousands(tensor_parallel_crossover(layer, hidden, mixed()));
  }
  return in(p.column == 3 ? sent(Scheme::kZero3, copies(layer, mixed()), 8).total()
                          : tensor_parallel_sent(8192, hidden, mixed().parameter, 8),
            Unit::kGB, 3);
}

// In the order of the page.
const std::vector<ComputedTable> kTables = {
    {"mode", ladder(/*classes=*/5)},
    {"mode", ladder(0)},
    {"owner of a whole tensor", owners},
    {"stage", formulas},
    {"N", ratios},
    {"stage",
     [](const Place& p) {
       return fixed(1 / ratio_to_ddp(mixed(), stage_of(p.row[0]), number_in(p.heading)), 1);
     }},
    {"N, in GiB", states(kOneAndAHalfBillion, mixed(), Unit::kGiB, 2)},
    {"N, in GB", states(7 * kBillion, mixed(), Unit::kGB, 4)},
    {"N, in GB", states(7 * kBillion, fp32(), Unit::kGB, 1)},
    {"N, in GB", states(13 * kBillion, mixed(), Unit::kGB, 2)},
    {"N", with_offload},
    {"", activations},
    {"", traffic},
    {"1.5 B parameters", volumes},
    {"stage", fit_24_gb},
    {"stage", fit_16_gb},
    {"bandwidth (GB/s)", lookahead},
    {"parameters", break_even},
    {"hidden size", tensor_parallelism}};

// ---- the page ----

Cells cells_of(const std::string& line) {
  Cells cells;
  for (std::size_t begin = 1, end = 0; (end = line.find('|', begin)) != std::string::npos;
       begin = end + 1) {
    const std::string cell = line.substr(begin, end - begin);
    const std::size_t first = cell.find_first_not_of(' ');
    cells.push_back(first == std::string::npos
                        ? ""
                        : cell.substr(first, cell.find_last_not_of(' ') - first + 1));
  }
  return cells;
}

// Rows of tables: headings, a rule, and figures.
std::vector<std::vector<Cells>> tables_of_the_page() {
  std::ifstream file("tools/plan/literature_tables.md");
  std::vector<std::vector<Cells>> tables;
  bool inside = false;
  for (std::string line; std::getline(file, line); inside = line.starts_with('|')) {
    if (!line.starts_with('|')) continue;
    if (!inside) tables.emplace_back();
    tables.back().push_back(cells_of(line));
  }
  return tables;
}

TEST(Literature, EveryCellOfEveryTableIsComputed) {
  const std::vector<std::vector<Cells>> tables = tables_of_the_page();
  ASSERT_EQ(tables.size(), kTables.size());
  for (std::size_t i = 0; i < tables.size(); ++i) {
    const Cells& headings = tables[i].front();
    ASSERT_EQ(headings.front(), kTables[i].first_heading) << "table " << i + 1;
    for (std::size_t row = 2; row < tables[i].size(); ++row) {
      const Cells& cells = tables[i][row];
      ASSERT_EQ(cells.size(), headings.size());
      for (std::size_t column = 1; column < cells.size(); ++column) {
        EXPECT_EQ(kTables[i].cell({cells, column, headings[column]}), cells[column])
            << fmt::format("table {}, {}, {}", i + 1, cells.front(), headings[column]);
      }
    }
  }
}

// FSDP2 divides the rows of each tensor and pads them: `score`, 5 x 960, has 3 rows on each rank.
TEST(Literature, FsdpAtRest) {
  std::int64_t elements = 0;
  for (const nn::Parameter& p : tensors_of_smollm2_360m(/*classes=*/5).parameters) {
    const std::int64_t rows = p.tensor.size(0);
    elements += (rows + 1) / 2 * (p.numel() / rows);
  }
  EXPECT_EQ(elements, 361'825'920 / 2 + 480);
  EXPECT_EQ(total(model_states(elements, fp32(), Stage::kDdp, 1), Unit::kMiB), "2760.52");
}

// By count the fuller of two ranks, under stages 1, 2 and 3.
TEST(Literature, TheFullerOfTwoOwners) {
  const auto [all, fullest] = all_and_fullest(2, /*by_size=*/false);
  const auto mib = [](double bytes) { return in(bytes, Unit::kMiB, 1); };
  EXPECT_EQ(mib(2 * all + 2 * fullest), "4320.7");
  EXPECT_EQ(mib(all + 3 * fullest), "3720.6");
  EXPECT_EQ(mib(4 * fullest), "3120.5");
}

}  // namespace
}  // namespace zero::plan
