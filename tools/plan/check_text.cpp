#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "check.hpp"
#include "quantity.hpp"

namespace zero::plan {
namespace {

using base::Align;
using base::fixed;
using base::Json;

std::string percent(const Compared& compared, int decimals) {
  return fixed(100 * compared.error(), decimals);
}

Json to_json(const Compared& compared) {
  return {{"predicted", compared.predicted},
          {"measured", compared.measured},
          {"error", compared.error()}};
}

std::string speeds(const Check& check) {
  if (!check.machine) return "";
  return fmt::format(
      "Speeds of this machine, from mode ddp: {} GFLOP/s, {} MB/s while waiting, {} M elements/s "
      "in "
      "AdamW.\n",
      fixed(check.machine->flops / 1e9, 1), fixed(check.machine->bandwidth / 1e6, 0),
      fixed(check.optimizer_elements_per_second / 1e6, 0));
}

}  // namespace

std::string to_text(const Check& check) {
  const auto group = [](const char* title, const char* unit) {
    return std::vector<base::Column>{{"predicted", Align::kRight, unit, title},
                                     {"measured", Align::kRight, unit, title},
                                     {"error", Align::kRight, "%", title}};
  };
  std::vector<base::Column> columns = {{"mode", Align::kLeft}};
  for (const auto& [title, unit] :
       {std::pair{"model states", "MiB"}, {"sent", "MiB"}, {"step", "s"}}) {
    for (const base::Column& column : group(title, unit)) columns.push_back(column);
  }
  columns.push_back({"bound", Align::kRight, "MiB", "peak"});
  columns.push_back({"measured", Align::kRight, "MiB", "peak"});
  base::Table table(columns);
  for (const ModeCheck& mode : check.modes) {
    std::vector<std::string> row = {mode.mode, fixed(mode.states.predicted, 2),
                                    fixed(mode.states.measured, 2), percent(mode.states, 4)};
    const auto add = [&](const std::optional<Compared>& c, double unit, int digits, int percents) {
      row.push_back(c ? fixed(c->predicted / unit, digits) : "-");
      row.push_back(c ? fixed(c->measured / unit, digits) : "-");
      row.push_back(c ? percent(*c, percents) : "-");
    };
    add(mode.sent, static_cast<double>(kMiB), 2, 4);
    add(mode.step, 1, 3, 1);
    if (mode.calibrates) row.back() += " *";
    row.push_back(fixed(mode.peak.predicted, 0));
    row.push_back(fixed(mode.peak.measured, 0));
    table.add_row(std::move(row));
  }
  std::string text = check.title + "\n\n" + table.to_text() + "\n" + speeds(check);
  if (check.machine) {
    text +=
        "* The other steps are predicted with these speeds. Means over ranks; MiB = 2^20 bytes.\n";
  }
  for (const std::string& note : check.notes) text += fmt::format("note: {}\n", note);
  return text;
}

Json to_json(const Check& check) {
  Json json = {{"title", check.title}, {"modes", Json::array()}};
  if (check.machine) {
    json["operations_per_second"] = check.machine->flops;
    json["bandwidth_bytes_per_second"] = check.machine->bandwidth;
    json["optimizer_elements_per_second"] = check.optimizer_elements_per_second;
  }
  for (const ModeCheck& mode : check.modes) {
    json["modes"].push_back({{"mode", mode.mode},
                             {"model_states_mib", to_json(mode.states)},
                             {"sent_bytes", mode.sent ? to_json(*mode.sent) : Json()},
                             {"step_seconds", mode.step ? to_json(*mode.step) : Json()},
                             {"calibrates", mode.calibrates},
                             {"peak_bound_mib", to_json(mode.peak)}});
  }
  json["notes"] = check.notes;
  json["failures"] = check.failures;
  return json;
}

}  // namespace zero::plan
