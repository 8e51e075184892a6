#include <fmt/format.h>

#include "activations.hpp"
#include "quantity.hpp"
#include "states.hpp"
#include "tables.hpp"

namespace zero::plan {
namespace {

using base::Align;
using base::Column;
using base::fixed;
using base::Table;

constexpr Stage kSharded[] = {Stage::kZero1, Stage::kZero2, Stage::kZero3};

std::string amount(const States& states, Unit unit, int decimals = 2) {
  return in(static_cast<double>(states.total()), unit, decimals);
}

// "4 P + 12 P/N": what every rank holds, and what they share.
std::string formula(const Policy& policy, Stage stage) {
  const std::int64_t whole = states_at_limit(1, policy, stage).total();
  const std::int64_t shared = policy.total() - whole;
  if (shared == 0) return fmt::format("{} P", whole);
  if (whole == 0) return fmt::format("{} P/N", shared);
  return fmt::format("{} P + {} P/N", whole, shared);
}

NamedTable formulas() {
  Table table({{"stage", Align::kLeft},
               {"mixed", Align::kLeft},
               {"N = 8"},
               {"N = 64"},
               {"N large"},
               {"fp32", Align::kLeft}});
  for (const Stage stage : kStages) {
    const auto at = [&](std::int64_t n) {
      const double bytes = bytes_per_parameter(mixed(), stage, n);
      const double less = 100 * (1 - ratio_to_ddp(mixed(), stage, n));
      return fixed(bytes, 2) + " P" + (less > 0 ? fmt::format(", -{} %", fixed(less, 1)) : "");
    };
    table.add_row({name(stage), formula(mixed(), stage), at(8), at(64),
                   fmt::format("{} P", states_at_limit(1, mixed(), stage).total()),
                   formula(fp32(), stage)});
  }
  return {"Model states in bytes: P parameters, N ranks; mixed 2 + 2 + 12, fp32 4 + 4 + 8",
          std::move(table)};
}

NamedTable ratios() {
  std::vector<Column> columns = {{"N"}};
  for (const char* group : {"fp32", "mixed"}) {
    for (const Stage stage : kSharded) columns.push_back({name(stage), Align::kRight, "", group});
  }
  Table table(columns);
  for (const std::int64_t n : {2, 4, 8}) {
    std::vector<std::string> row = {fmt::format("{}", n)};
    for (const Policy& policy : {fp32(), mixed()}) {
      for (const Stage stage : kSharded) row.push_back(fixed(ratio_to_ddp(policy, stage, n), 6));
    }
    table.add_row(std::move(row));
  }
  return {"Model states over DDP's", std::move(table)};
}

NamedTable factors() {
  Table table({{"stage", Align::kLeft}, {"N = 4"}, {"8"}, {"64"}});
  for (const Stage stage : kSharded) {
    std::vector<std::string> row = {name(stage)};
    for (const std::int64_t n : {4, 8, 64}) {
      row.push_back(fixed(reduction_factor(mixed(), stage, n), 1));
    }
    table.add_row(std::move(row));
  }
  return {"How many times smaller than DDP's, mixed",
          std::move(table),
          {fmt::format("1024 ranks of DDP hold 1024 copies: {} % of it is redundant, memory "
                       "efficiency 1/1024.",
                       fixed(100 * redundant_share(1024), 1))}};
}

NamedTable by_world_size(const std::string& title, std::int64_t parameters, const Policy& policy,
                         std::initializer_list<std::int64_t> sizes, Unit unit, int decimals) {
  std::vector<Column> columns = {{"N"}};
  for (const Stage stage : kStages) columns.push_back({name(stage), Align::kRight, name(unit)});
  Table table(columns);
  for (const std::int64_t n : sizes) {
    std::vector<std::string> row = {fmt::format("{}", n)};
    for (const Stage stage : kStages) {
      row.push_back(amount(model_states(parameters, policy, stage, n), unit, decimals));
    }
    table.add_row(std::move(row));
  }
  return {title, std::move(table)};
}

NamedTable offload() {
  constexpr std::int64_t kParameters = 3 * kBillion / 2;
  Table table({{"N"},
               {"on the device", Align::kRight, "GiB"},
               {"", Align::kRight, "GB"},
               {"under 1 GiB", Align::kLeft},
               {"under 1 GB", Align::kLeft}});
  for (const std::int64_t n : {1, 2, 4, 5, 6, 7, 8}) {
    const States states =
        with_offloaded_optimizer(model_states(kParameters, mixed(), Stage::kZero3, n));
    table.add_row({fmt::format("{}", n), amount(states, Unit::kGiB), amount(states, Unit::kGB),
                   states.total() < kGiB ? "yes" : "no", states.total() < kGB ? "yes" : "no"});
  }
  return {"1.5 B parameters, mixed, ZeRO-3 with the optimizer in host memory: 4 P/N",
          std::move(table)};
}

NamedTable activations() {
  constexpr std::int64_t kParameters = 7 * kBillion;
  constexpr std::int64_t kTokens = 4 * 2048;
  Shape shape = model_of_size(kParameters, /*layers=*/32).shape;
  shape.hidden = shape.attention = 4096;
  shape.mlp = 4 * shape.hidden;
  Table table({{"", Align::kLeft}, {"GB"}, {"GiB"}});
  const auto row = [&](const char* what, std::int64_t bytes) {
    const auto value = static_cast<double>(bytes);
    table.add_row({what, in(value, Unit::kGB), in(value, Unit::kGiB)});
  };
  row("model states, ZeRO-3, 64 ranks",
      model_states(kParameters, mixed(), Stage::kZero3, 64).total());
  row("activations, everything kept", activation_bytes(shape, kTokens, 2));
  row("activations, layers recomputed", activation_bytes(shape, kTokens, 2, Recompute::kLayers));
  return {"7 B parameters (32 layers, hidden size 4096), batch 4, sequence 2048: what dominates",
          std::move(table)};
}

}  // namespace

std::vector<NamedTable> model_state_tables() {
  std::vector<NamedTable> tables;
  tables.push_back(formulas());
  tables.push_back(ratios());
  tables.push_back(factors());
  tables.push_back(by_world_size("1.5 B parameters, mixed, a rank", 3 * kBillion / 2, mixed(),
                                 {1, 2, 8, 32, 128, 512}, Unit::kGiB, 2));
  tables.push_back(by_world_size("7 B parameters, mixed, a rank", 7 * kBillion, mixed(),
                                 {4, 8, 64, 256}, Unit::kGB, 4));
  tables.push_back(
      by_world_size("7 B parameters, fp32, a rank", 7 * kBillion, fp32(), {8}, Unit::kGB, 1));
  tables.push_back(by_world_size("13 B parameters, mixed, a rank", 13 * kBillion, mixed(), {8, 32},
                                 Unit::kGB, 2));
  tables.push_back(offload());
  tables.push_back(activations());
  return tables;
}

}  // namespace zero::plan
