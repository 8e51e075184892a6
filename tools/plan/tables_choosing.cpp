#include <fmt/format.h>

#include "alternatives.hpp"
#include "planner.hpp"
#include "quantity.hpp"
#include "tables.hpp"

namespace zero::plan {
namespace {

using base::Align;
using base::fixed;
using base::Table;

constexpr double kOverhead = 0.05;

NamedTable thirteen_billion() {
  constexpr std::int64_t kParameters = 13 * kBillion;
  constexpr std::int64_t kMemory = 24 * kGB;
  Table table({{"stage", Align::kLeft},
               {"N"},
               {"model states", Align::kRight, "GB"},
               {"fit 24 GB", Align::kLeft}});
  const auto add = [&](const std::string& what, std::int64_t n, const States& states) {
    table.add_row({what, fmt::format("{}", n), in(static_cast<double>(states.total()), Unit::kGB),
                   states.total() <= kMemory ? "yes" : "no"});
  };
  for (const Stage stage : kStages)
    add(name(stage), 8, model_states(kParameters, mixed(), stage, 8));
  const States zero3 = model_states(kParameters, mixed(), Stage::kZero3, 8);
  add("ZeRO-3 + offload", 8, with_offloaded_optimizer(zero3));
  const auto states = [&](std::int64_t n) {
    return model_states(kParameters, mixed(), Stage::kZero3, n);
  };
  const auto fewest = fewest_ranks(kMemory, 8, [&](std::int64_t n) { return states(n).total(); });
  for (const std::int64_t n : {*fewest, std::int64_t{12}, std::int64_t{16}}) {
    add("ZeRO-3", n, states(n));
  }
  return {"13 B parameters, mixed, on cards of 24 GB",
          std::move(table),
          {fmt::format("ZeRO-3 needs {} ranks for the model states alone; activations and buffers "
                       "want 12 to 16.",
                       *fewest)}};
}

NamedTable never_fits() {
  constexpr std::int64_t kParameters = 3 * kBillion / 2;
  constexpr std::int64_t kMemory = 16 * kGB;
  Table table({{"stage", Align::kLeft},
               {"N large", Align::kRight, "GB"},
               {"fits 16 GB from", Align::kLeft}});
  for (const Stage stage : kStages) {
    const auto fewest = fewest_ranks(kMemory, 1, [&](std::int64_t n) {
      return model_states(kParameters, mixed(), stage, n).total();
    });
    const States limit = states_at_limit(kParameters, mixed(), stage);
    table.add_row({name(stage), in(static_cast<double>(limit.total()), Unit::kGB),
                   fewest ? fmt::format("{} ranks", *fewest) : "never"});
  }
  return {"1.5 B parameters, mixed, model states alone on cards of 16 GB", std::move(table)};
}

NamedTable gathers() {
  constexpr double kCompute = 10e-3;
  constexpr std::int64_t kUnit = 200'000'000;
  const double bytes = static_cast<double>(kUnit * mixed().parameter);
  Table table({{"bandwidth", Align::kRight, "GB/s"},
               {"gather", Align::kRight, "ms"},
               {"k*"},
               {"exposed, 32 units", Align::kRight, "ms, at k*"}});
  for (const double bandwidth : {25e9, 50e9, 100e9, 200e9}) {
    const double gather = communication_seconds(bytes, 0, {.bandwidth = bandwidth});
    const std::int64_t k = lookahead(gather, kCompute);
    const Pass pass{std::vector<double>(32, gather), std::vector<double>(32, kCompute),
                    std::vector<double>(32, 0)};
    table.add_row({fixed(bandwidth / 1e9, 0), fixed(gather * 1e3, 0), fmt::format("{}", k),
                   fixed(exposed_seconds(pass, k) * 1e3, 0)});
  }
  return {
      "Lookahead for a unit of 200 M parameters (400 MB in 2 bytes) and 10 ms of compute",
      std::move(table),
      {"k* takes every gather to have the link for itself. On one link what gathers take longer "
       "than",
       "computing adds up whatever k is; the first gather has nothing to hide behind."}};
}

NamedTable break_even() {
  constexpr std::int64_t kLayers = 32;
  const Machine machine;
  Table table({{"parameters", Align::kRight},
               {"communication", Align::kRight, "ms"},
               {"sequence 2048", Align::kRight, "samples"},
               {"8192", Align::kRight, "samples"}});
  for (const std::int64_t billions : {7, 13, 70}) {
    const std::int64_t parameters = billions * kBillion;
    const double bytes = volume(Scheme::kZero3, copies(parameters, mixed()), 2).total();
    const double seconds =
        communication_seconds(bytes, collectives(Scheme::kZero3, kLayers), machine);
    const auto batch = [&](std::int64_t sequence) {
      return fmt::format("{}",
                         *break_even_batch(seconds, parameters, sequence, kOverhead, machine));
    };
    table.add_row(
        {fmt::format("{} B", billions), fixed(seconds * 1e3, 0), batch(2048), batch(8192)});
  }
  return {"Break-even batch of ZeRO-3: communication under 5 % of compute, many ranks",
          std::move(table),
          {"10 us, 100 GB/s, 150 TFLOP/s, 32 layers, mixed; nothing hidden."}};
}

NamedTable hybrid_table() {
  Table table({{"8 ranks, mixed", Align::kLeft},
               {"model states", Align::kRight, "GB"},
               {"volume", Align::kRight, "GB"}});
  constexpr std::int64_t kLarge = 6 * kBillion;
  constexpr std::int64_t kSmall = 1 * kBillion;
  const auto add = [&](const char* what, const Hybrid& h) {
    table.add_row(
        {what, in(static_cast<double>(h.states.total()), Unit::kGB), in(h.volume, Unit::kGB)});
  };
  add("all ZeRO-3", hybrid(kLarge + kSmall, 0, mixed(), 8));
  add("6 B ZeRO-3, 1 B ZeRO-2", hybrid(kLarge, kSmall, mixed(), 8));
  add("all ZeRO-2", hybrid(0, kLarge + kSmall, mixed(), 8));
  return {
      "Hybrid of 7 B: 16 P_large/N + 2 P_small + 14 P_small/N bytes; 6 P_large + 4 P_small on the "
      "wire",
      std::move(table),
      {fmt::format("On the small units ZeRO-3 sends {} times as much.",
                   fixed(hybrid(kLarge, kSmall, mixed(), 8).saving_on_small, 1))}};
}

NamedTable tensor_parallelism() {
  Table table({{"hidden size", Align::kRight},
               {"layer", Align::kRight, "parameters"},
               {"even at", Align::kRight, "tokens"},
               {"ZeRO-3 at 8192 tokens", Align::kRight, "GB, 8 ranks"},
               {"tensor parallel", Align::kRight, "GB, 8 ranks"}});
  for (const std::int64_t hidden : {1024, 4096, 8192}) {
    const std::int64_t layer = 12 * hidden * hidden;
    table.add_row({fmt::format("{}", hidden), base::with_thousands(layer),
                   base::with_thousands(tensor_parallel_crossover(layer, hidden, mixed())),
                   in(zero3_layer_sent(layer, mixed(), 8), Unit::kGB, 3),
                   in(tensor_parallel_sent(8192, hidden, mixed().parameter, 8), Unit::kGB, 3)});
  }
  return {
      "One layer of 12 hidden^2 parameters: ZeRO-3's 3 V against tensor parallelism's "
      "activations",
      std::move(table),
      {"Tokens are those of all ranks in a step; below the crossover ZeRO-3 sends more."}};
}

}  // namespace

std::vector<NamedTable> choosing_tables() {
  std::vector<NamedTable> tables;
  tables.push_back(thirteen_billion());
  tables.push_back(never_fits());
  tables.push_back(gathers());
  tables.push_back(break_even());
  tables.push_back(hybrid_table());
  tables.push_back(tensor_parallelism());
  return tables;
}

}  // namespace zero::plan
