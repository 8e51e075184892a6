#include <fmt/format.h>

#include "quantity.hpp"
#include "tables.hpp"
#include "whole_parameters.hpp"

namespace zero::plan {
namespace {

using base::Align;
using base::fixed;
using base::Table;
using base::with_thousands;
using train::Ownership;

constexpr int kRanks = 2;

Model smollm2_360m(std::int64_t classes) {
  nn::LlamaConfig config = nn::preset("smollm2-360m");
  config.classes = classes;
  return model_of(config, "SmolLM2-360M");
}

void add_row(Table& table, const std::string& mode, const States& states, double ratio) {
  const auto mib = [](std::int64_t bytes) { return in(static_cast<double>(bytes), Unit::kMiB); };
  table.add_row({mode, mib(states.parameters), mib(states.gradients), mib(states.optimizer),
                 mib(states.total()), fixed(ratio, 3)});
}

NamedTable memory_ladder(const Model& model, const std::string& what, bool with_fsdp) {
  Table table({{"mode", Align::kLeft},
               {"model", Align::kRight, "MiB"},
               {"grad", Align::kRight, "MiB"},
               {"optimizer", Align::kRight, "MiB"},
               {"total", Align::kRight, "MiB"},
               {"ratio"}});
  for (const Stage stage : kStages) {
    add_row(table, name(stage), model_states(model.parameters, fp32(), stage, kRanks),
            ratio_to_ddp(fp32(), stage, kRanks));
  }
  if (with_fsdp) {
    const std::int64_t own = elements_sharded_by_rows(model.tensors, kRanks);
    const States states = model_states(own, fp32(), Stage::kDdp, 1);
    const std::int64_t ddp = model_states(model.parameters, fp32(), Stage::kDdp, kRanks).total();
    add_row(table, "FSDP2 at rest", states,
            static_cast<double>(states.total()) / static_cast<double>(ddp));
  }
  return {fmt::format("SmolLM2-360M as a {}, fp32, AdamW, {} ranks: {} parameters in {} tensors",
                      what, kRanks, with_thousands(model.parameters), model.tensors.size()),
          std::move(table)};
}

std::string count_row(const Model& model) {
  std::string totals;
  for (const Stage stage : {Stage::kZero1, Stage::kZero2, Stage::kZero3}) {
    const States states = largest_states(model.tensors, fp32(), stage, kRanks, Ownership::kByCount);
    totals +=
        (totals.empty() ? "" : " / ") + in(static_cast<double>(states.total()), Unit::kMiB, 1);
  }
  return fmt::format("By count on {} ranks the fuller one holds {} MiB (stages 1, 2, 3).", kRanks,
                     totals);
}

NamedTable ownership(const Model& model) {
  Table table({{"owner of a whole tensor", Align::kLeft}, {"N = 2"}, {"4"}, {"8"}, {"16"}});
  const std::pair<const char*, Ownership> rules[] = {{"by count", Ownership::kByCount},
                                                     {"by size", Ownership::kBySize}};
  for (const auto& [rule, ownership] : rules) {
    std::vector<std::string> row = {rule};
    for (const int ranks : {2, 4, 8, 16}) {
      row.push_back(fixed(largest_over_mean(model.tensors, ranks, ownership), 4));
    }
    table.add_row(std::move(row));
  }
  return {"Largest share over mean share where tensors stay whole, SmolLM2-360M",
          std::move(table),
          {count_row(model),
           fmt::format("The embedding has {} of {} parameters, a layer {}, the final norm {}.",
                       with_thousands(model.tensors.front().elements),
                       with_thousands(model.parameters), with_thousands(model.units.front()),
                       with_thousands(model.tensors.back().elements))}};
}

}  // namespace

std::vector<NamedTable> ladder_tables() {
  const Model classifier = smollm2_360m(/*classes=*/5);
  const Model language_model = smollm2_360m(/*classes=*/0);
  std::vector<NamedTable> tables;
  tables.push_back(memory_ladder(classifier, "classifier of 5 classes", /*with_fsdp=*/true));
  tables.back().notes = {
      "FSDP2 divides rows and pads them: score, 5 x 960, becomes 3 rows on either rank."};
  tables.push_back(memory_ladder(language_model, "language model", /*with_fsdp=*/false));
  tables.push_back(ownership(language_model));
  return tables;
}

}  // namespace zero::plan
