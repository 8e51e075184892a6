// docs/literature.md has the figures that papers and courses quote. Every table of that page is
// computed here, and must stand there as it is printed here.
#include <fmt/ranges.h>
#include <gmock/gmock.h>

#include <cmath>
#include <fstream>
#include <iterator>
#include <numeric>

#include <zero/base/table.hpp>
#include <zero/nn/llama.hpp>
#include <zero/nn/parameters.hpp>
#include <zero/train/exposed_time.hpp>
#include <zero/train/ownership.hpp>

#include "planner.hpp"

namespace zero::plan {
namespace {

using base::fixed;
using Cells = std::vector<std::string>;

const std::vector<Stage> kAll(std::begin(kStages), std::end(kStages));
const std::vector<Stage> kSharded = {Stage::kZero1, Stage::kZero2, Stage::kZero3};
constexpr std::int64_t kOneAndAHalfBillion = 3 * kBillion / 2;

// The page has the table with these headers, and with a row of `cells(row)` for each of `rows`.
template <class Row, class Make>
void expect_table(const Cells& headers, const std::vector<Row>& rows, Make cells) {
  const auto line = [](const Cells& texts) {
    return fmt::format("| {} |\n", fmt::join(texts, " | "));
  };
  Cells rules(headers.size(), "---:");
  rules.front() = "---";
  std::string table = line(headers) + line(rules);
  for (const Row& row : rows) table += line(cells(row));
  std::ifstream file("docs/literature.md");
  const std::string page{std::istreambuf_iterator<char>(file), {}};
  EXPECT_THAT(page, ::testing::HasSubstr("\n" + table + "\n"));
}

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

std::string total(const States& states, Unit unit, int decimals = 2) {
  return in(static_cast<double>(states.total()), unit, decimals);
}

nn::LlamaConfig smollm2_360m(std::int64_t classes) {
  nn::LlamaConfig config = nn::preset("smollm2-360m");
  config.classes = classes;
  return config;
}

// Its tensors, without storage.
nn::ParameterList tensors_of_smollm2_360m(std::int64_t classes) {
  const nn::DeferredStorage deferred;
  return nn::list_parameters(*std::make_shared<nn::Llama>(smollm2_360m(classes)));
}

Cells ladder_row(const std::string& mode, const States& states, double ratio) {
  const auto mib = [](std::int64_t bytes) { return in(static_cast<double>(bytes), Unit::kMiB); };
  return {mode,
          mib(states.parameters),
          mib(states.gradients),
          mib(states.optimizer),
          mib(states.total()),
          fixed(ratio, 3)};
}

TEST(Literature, TheMemoryLadder) {
  for (const std::int64_t classes : {5, 0}) {
    const std::int64_t parameters = smollm2_360m(classes).parameters();
    expect_table({"mode", "parameters (MiB)", "gradients", "optimizer", "total", "ratio"}, kAll,
                 [&](Stage stage) {
                   return ladder_row(name(stage), model_states(parameters, fp32(), stage, 2),
                                     ratio_to_ddp(fp32(), stage, 2));
                 });
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
  EXPECT_EQ(ladder_row("", model_states(elements, fp32(), Stage::kDdp, 1), 0.5),
            (Cells{"", "690.13", "690.13", "1380.26", "2760.52", "0.500"}));
}

// Bytes of fp32 and their fullest rank's, where tensors have owners.
std::pair<double, double> all_and_fullest(int ranks, train::Ownership ownership) {
  std::vector<std::int64_t> sizes;
  for (const nn::Parameter& p : tensors_of_smollm2_360m(/*classes=*/0).parameters) {
    sizes.push_back(p.bytes());
  }
  const std::vector<int> owners = train::assign_owners(sizes, ranks, ownership);
  std::vector<double> owned(static_cast<std::size_t>(ranks), 0);
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    owned[static_cast<std::size_t>(owners[i])] += static_cast<double>(sizes[i]);
  }
  return {std::accumulate(owned.begin(), owned.end(), 0.0),
          *std::max_element(owned.begin(), owned.end())};
}

TEST(Literature, OwnersOfWholeTensors) {
  using train::Ownership;
  expect_table({"owner of a whole tensor", "N = 2", "4", "8", "16"},
               std::vector{Ownership::kByCount, Ownership::kBySize}, [](Ownership ownership) {
                 Cells cells = {ownership == Ownership::kByCount ? "by count" : "by size"};
                 for (const int ranks : {2, 4, 8, 16}) {
                   const auto [all, fullest] = all_and_fullest(ranks, ownership);
                   cells.push_back(fixed(fullest * ranks / all, 4));
                 }
                 return cells;
               });
  // By count the fuller of two ranks, under stages 1, 2 and 3.
  const auto [all, fullest] = all_and_fullest(2, Ownership::kByCount);
  const auto mib = [](double bytes) { return in(bytes, Unit::kMiB, 1); };
  EXPECT_EQ(mib(2 * all + 2 * fullest), "4320.7");
  EXPECT_EQ(mib(all + 3 * fullest), "3720.6");
  EXPECT_EQ(mib(4 * fullest), "3120.5");
}

TEST(Literature, Formulas) {
  struct Row {
    Stage stage;
    const char *mixed, *fp32;
  };
  expect_table(
      {"stage", "mixed", "N = 8", "N = 64", "N large", "fp32"},
      std::vector<Row>{{Stage::kDdp, "16 P", "16 P"},
                       {Stage::kZero1, "4 P + 12 P/N", "8 P + 8 P/N"},
                       {Stage::kZero2, "2 P + 14 P/N", "4 P + 12 P/N"},
                       {Stage::kZero3, "16 P/N", "16 P/N"}},
      [](const Row& row) -> Cells {
        const auto at = [&](std::int64_t n) {
          return fmt::format("{:.2f} P, {:.1f} % less", bytes_per_parameter(mixed(), row.stage, n),
                             100 * (1 - ratio_to_ddp(mixed(), row.stage, n)));
        };
        return {name(row.stage),
                row.mixed,
                at(8),
                at(64),
                fmt::format("{:.0f} P", bytes_per_parameter(mixed(), row.stage, kMostRanks)),
                row.fp32};
      });
}

TEST(Literature, Ratios) {
  expect_table({"N", "fp32 ZeRO-1", "ZeRO-2", "ZeRO-3", "mixed ZeRO-1", "ZeRO-2", "ZeRO-3"},
               std::vector<std::int64_t>{2, 4, 8}, [](std::int64_t n) {
                 Cells cells = {fmt::format("{}", n)};
                 for (const Policy& policy : {fp32(), mixed()}) {
                   for (const Stage stage : kSharded) {
                     cells.push_back(fixed(ratio_to_ddp(policy, stage, n), 6));
                   }
                 }
                 return cells;
               });
  expect_table({"stage", "N = 4", "8", "64"}, kSharded, [](Stage stage) {
    Cells cells = {name(stage)};
    for (const std::int64_t n : {4, 8, 64}) {
      cells.push_back(fixed(1 / ratio_to_ddp(mixed(), stage, n), 1));
    }
    return cells;
  });
}

void expect_states(std::int64_t parameters, const Policy& policy, Unit unit, int decimals,
                   const std::vector<std::int64_t>& ranks) {
  expect_table(
      {fmt::format("N, in {}", name(unit)), "DDP", "ZeRO-1", "ZeRO-2", "ZeRO-3"}, ranks,
      [&](std::int64_t n) {
        Cells cells = {fmt::format("{}", n)};
        for (const Stage stage : kAll) {
          cells.push_back(total(model_states(parameters, policy, stage, n), unit, decimals));
        }
        return cells;
      });
}

TEST(Literature, ModelStatesByWorldSize) {
  expect_states(kOneAndAHalfBillion, mixed(), Unit::kGiB, 2, {1, 2, 8, 32, 128, 512});
  expect_states(7 * kBillion, mixed(), Unit::kGB, 4, {4, 8, 64, 256});
  expect_states(7 * kBillion, fp32(), Unit::kGB, 1, {8});
  expect_states(13 * kBillion, mixed(), Unit::kGB, 2, {8, 32});
}

TEST(Literature, OffloadedOptimizer) {
  expect_table({"N", "on the device (GiB)", "(GB)", "under 1 GiB", "under 1 GB"},
               std::vector<std::int64_t>{1, 2, 4, 5, 6, 7, 8}, [](std::int64_t n) -> Cells {
                 const States states = offloaded(kOneAndAHalfBillion, n);
                 return {fmt::format("{}", n), total(states, Unit::kGiB), total(states, Unit::kGB),
                         states.total() < kGiB ? "yes" : "no", states.total() < kGB ? "yes" : "no"};
               });
}

TEST(Literature, Activations) {
  Request request;
  request.model = model_of_size(7 * kBillion, /*layers=*/32);
  request.model.shape = {.layers = 32, .hidden = 4096, .attention = 4096, .mlp = 4 * 4096};
  request.batch = 4;
  const auto activations = [&](bool recompute) {
    request.recompute = recompute;
    return plan_stage(request, Stage::kZero3, data_mesh(Stage::kZero3, 64)).activations;
  };
  const States states = model_states(7 * kBillion, mixed(), Stage::kZero3, 64);
  expect_table({"", "GB", "GiB"},
               std::vector<std::pair<const char*, std::int64_t>>{
                   {"model states, ZeRO-3, 64 ranks", states.total()},
                   {"activations, everything kept", activations(false)},
                   {"activations, layers recomputed", activations(true)}},
               [](const auto& row) -> Cells {
                 const auto bytes = static_cast<double>(row.second);
                 return {row.first, in(bytes, Unit::kGB), in(bytes, Unit::kGiB)};
               });
}

TEST(Literature, Traffic) {
  struct Row {
    Scheme scheme;
    const char *name, *formula;
  };
  expect_table(
      {"", "bytes sent by a rank", "N = 2 (V)", "4", "8"},
      std::vector<Row>{{Scheme::kDdp, "DDP", "2 V (N-1)/N"},
                       {Scheme::kZero1Naive, "ZeRO-1 naive", "3 V (N-1)/N"},
                       {Scheme::kZero1, "ZeRO-1", "2 V (N-1)/N"},
                       {Scheme::kZero2, "ZeRO-2", "2 V (N-1)/N"},
                       {Scheme::kZero2Placeholder, "ZeRO-2 placeholder", "(N-1) V + V (N-1)/N"},
                       {Scheme::kZero3, "ZeRO-3", "3 V (N-1)/N"},
                       {Scheme::kZero3Kept, "ZeRO-3 kept", "2 V (N-1)/N"}},
      [](const Row& row) {
        Cells cells = {row.name, row.formula};
        for (const std::int64_t n : {2, 4, 8}) {
          cells.push_back(fixed(sent(row.scheme, {1, 1}, n).total(), 3));
        }
        return cells;
      });
  expect_table(
      {"1.5 B parameters", "total (GiB)", "reduced", "gathered"}, kAll, [](Stage stage) -> Cells {
        const plan::Traffic v = volume(scheme_of(stage), copies(kOneAndAHalfBillion, mixed()), 8);
        return {name(stage), in(v.total(), Unit::kGiB), in(v.gradients_reduced, Unit::kGiB),
                in(v.gradients_gathered + v.parameters_gathered, Unit::kGiB)};
      });
}

TEST(Literature, ThirteenBillionOnCardsOf24GB) {
  struct Row {
    const char* what;
    std::int64_t ranks;
    States states;
  };
  std::vector<Row> rows;
  const auto states = [](Stage stage, std::int64_t n) {
    return model_states(13 * kBillion, mixed(), stage, n);
  };
  for (const Stage stage : kAll) rows.push_back({name(stage), 8, states(stage, 8)});
  rows.push_back({"ZeRO-3 + offload", 8, offloaded(13 * kBillion, 8)});
  const auto needed = [&](std::int64_t n) { return states(Stage::kZero3, n).total(); };
  for (const std::int64_t n :
       {*fewest_ranks(24 * kGB, 8, needed), std::int64_t{12}, std::int64_t{16}}) {
    rows.push_back({"ZeRO-3", n, states(Stage::kZero3, n)});
  }
  expect_table({"stage", "N", "model states (GB)", "fit 24 GB"}, rows, [](const Row& row) -> Cells {
    return {row.what, fmt::format("{}", row.ranks), total(row.states, Unit::kGB),
            row.states.total() <= 24 * kGB ? "yes" : "no"};
  });
}

TEST(Literature, OneAndAHalfBillionOnCardsOf16GB) {
  expect_table({"stage", "N large (GB)", "fits 16 GB from"}, kAll, [](Stage stage) -> Cells {
    const auto fewest = fewest_ranks(16 * kGB, 1, [&](std::int64_t n) {
      return model_states(kOneAndAHalfBillion, mixed(), stage, n).total();
    });
    return {name(stage),
            total(model_states(kOneAndAHalfBillion, mixed(), stage, kMostRanks), Unit::kGB),
            fewest ? fmt::format("{} ranks", *fewest) : "never"};
  });
}

TEST(Literature, Lookahead) {
  constexpr double kCompute = 10e-3;
  const double bytes = copies(200'000'000, mixed()).parameters;
  expect_table({"bandwidth (GB/s)", "gather (ms)", "k*", "exposed, 32 units (ms, at k*)"},
               std::vector<double>{25e9, 50e9, 100e9, 200e9}, [&](double bandwidth) -> Cells {
                 const double gather = communication_seconds(bytes, 0, {.bandwidth = bandwidth});
                 const auto k = static_cast<std::int64_t>(std::ceil(gather / kCompute));
                 const train::Pass pass{std::vector<double>(32, gather),
                                        std::vector<double>(32, kCompute),
                                        std::vector<double>(32, 0)};
                 return {fixed(bandwidth / 1e9, 0), fixed(gather * 1e3, 0), fmt::format("{}", k),
                         fixed(train::exposed_seconds(pass, k) * 1e3, 0)};
               });
}

TEST(Literature, BreakEvenBatch) {
  const Machine machine{.bandwidth = 100e9, .latency = 10e-6, .flops = 150e12};
  expect_table(
      {"parameters", "communication (ms)", "sequence 2048 (samples)", "8192"},
      std::vector<std::int64_t>{7, 13, 70}, [&](std::int64_t billions) -> Cells {
        const std::int64_t parameters = billions * kBillion;
        const double sent = volume(Scheme::kZero3, copies(parameters, mixed()), 2).total();
        const double seconds =
            communication_seconds(sent, /*collectives, three for each of 32 layers=*/96, machine);
        const auto batch = [&](std::int64_t sequence) {
          return fmt::format("{}", *break_even_batch(seconds, parameters, sequence, 0.05, machine));
        };
        return {fmt::format("{} B", billions), fixed(seconds * 1e3, 0), batch(2048), batch(8192)};
      });
}

TEST(Literature, Hybrid) {
  struct Row {
    const char* what;
    std::int64_t large, small;
  };
  expect_table({"8 ranks, mixed", "model states (GB)", "volume (GB)"},
               std::vector<Row>{
                   {"all ZeRO-3", 7, 0}, {"6 B ZeRO-3, 1 B ZeRO-2", 6, 1}, {"all ZeRO-2", 0, 7}},
               [](const Row& row) -> Cells {
                 double states = 0, sent = 0;
                 for (const auto& [stage, billions] :
                      {std::pair{Stage::kZero3, row.large}, {Stage::kZero2, row.small}}) {
                   const std::int64_t parameters = billions * kBillion;
                   states +=
                       static_cast<double>(model_states(parameters, mixed(), stage, 8).total());
                   sent += volume(scheme_of(stage), copies(parameters, mixed()), 8).total();
                 }
                 return {row.what, in(states, Unit::kGB), in(sent, Unit::kGB)};
               });
}

TEST(Literature, TensorParallelism) {
  expect_table({"hidden size", "parameters of a layer", "even at (tokens)",
                "ZeRO-3 at 8192 tokens (GB, 8 ranks)", "tensor parallel"},
               std::vector<std::int64_t>{1024, 4096, 8192}, [](std::int64_t hidden) -> Cells {
                 const std::int64_t layer = 12 * hidden * hidden;
                 return {
                     fmt::format("{}", hidden), base::with_thousands(layer),
                     base::with_thousands(tensor_parallel_crossover(layer, hidden, mixed())),
                     in(sent(Scheme::kZero3, copies(layer, mixed()), 8).total(), Unit::kGB, 3),
                     in(tensor_parallel_sent(8192, hidden, mixed().parameter, 8), Unit::kGB, 3)};
               });
}

}  // namespace
}  // namespace zero::plan
