#include "fake_process_group_report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "ladder_report.hpp"

namespace zero::ladder {
namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
constexpr const char* kNotApplicable = "n/a";

struct StateKind {
  const char* name;
  std::int64_t StateBytes::*value;
};
constexpr StateKind kKinds[] = {
    {"parameters", &StateBytes::parameters},
    {"gradients", &StateBytes::gradients},
    {"optimizer", &StateBytes::optimizer},
};

std::string in_mib(std::int64_t bytes) { return base::fixed(mib(bytes), 2); }

std::string in_percent(double fraction) { return base::fixed(100 * fraction, 3); }

void check_bytes(const std::string& who, std::int64_t measured, std::int64_t formula,
                 std::vector<std::string>& failures) {
  if (std::abs(relative_difference(measured, formula)) <= kFormulaTolerance) return;
  failures.push_back(fmt::format("{}: {} bytes are held, the formula says {} (at most {} % off)",
                                 who, measured, formula, 100 * kFormulaTolerance));
}

void check_row(const FakeProcessGroupRow& row, std::vector<std::string>& failures) {
  for (const StateKind& kind : kKinds) {
    check_bytes(fmt::format("{}, {}", row.mode, kind.name), row.measured.*kind.value,
                row.formula.*kind.value, failures);
  }
  check_bytes(row.mode, row.measured.total(), row.formula.total(), failures);
  if (mib(row.other) > kLargestOtherMib) {
    failures.push_back(
        fmt::format("{}: {:.2f} MiB are alive that are no model states (at most {} MiB)", row.mode,
                    mib(row.other), kLargestOtherMib));
  }
  if (row.sent != row.formula_sent) {
    failures.push_back(
        fmt::format("{}: {} bytes of gradients and parameters would be sent in a step, the formula "
                    "says {}",
                    row.mode, row.sent, row.formula_sent));
  }
  if (row.losses.empty() || !std::all_of(row.losses.begin(), row.losses.end(),
                                         [](double loss) { return std::isfinite(loss); })) {
    failures.push_back(fmt::format("{}: a loss is missing or not finite", row.mode));
  }
  if (!row.every_piece_changed) {
    failures.push_back(fmt::format(
        "{}: a tensor that this rank updates still has its first value, so nothing was trained",
        row.mode));
  }
}

base::Json to_json(const StateBytes& bytes) {
  return {{"parameter_bytes", bytes.parameters},
          {"gradient_bytes", bytes.gradients},
          {"optimizer_bytes", bytes.optimizer},
          {"total_bytes", bytes.total()}};
}

StateBytes states_from_json(const base::Json& json) {
  return {json.at("parameter_bytes").get<std::int64_t>(),
          json.at("gradient_bytes").get<std::int64_t>(),
          json.at("optimizer_bytes").get<std::int64_t>()};
}

}  // namespace

double relative_difference(std::int64_t measured, std::int64_t formula) {
  if (measured == formula) return 0;
  // Infinite and not NaN: whoever compares it with a tolerance must find it too large.
  if (formula == 0) return std::numeric_limits<double>::infinity();
  return static_cast<double>(measured - formula) / static_cast<double>(formula);
}

base::Table fake_memory_table(const FakeProcessGroupReport& report) {
  std::vector<base::Column> columns = {{"mode", base::Align::kLeft}};
  for (const char* group : {"parameters", "gradients", "optimizer", "total"}) {
    columns.push_back({"held", base::Align::kRight, "MiB", group});
    columns.push_back({"formula", base::Align::kRight, "MiB", group});
  }
  columns.push_back({"off", base::Align::kRight, "%", "total"});
  columns.push_back({"total", base::Align::kRight, "MiB", "without padding"});
  columns.push_back({"off", base::Align::kRight, "%", "without padding"});
  columns.push_back({"peak", base::Align::kRight, "MiB"});
  columns.push_back({"other", base::Align::kRight, "MiB"});
  columns.push_back({"RSS+", base::Align::kRight, "MiB"});
  base::Table table(columns);
  for (const FakeProcessGroupRow& row : report.rows) {
    std::vector<std::string> cells = {row.mode};
    for (const StateKind& kind : kKinds) {
      cells.push_back(in_mib(row.measured.*kind.value));
      cells.push_back(in_mib(row.formula.*kind.value));
    }
    const std::int64_t total = row.measured.total();
    cells.push_back(in_mib(total));
    cells.push_back(in_mib(row.formula.total()));
    cells.push_back(in_percent(relative_difference(total, row.formula.total())));
    cells.push_back(row.planned ? in_mib(*row.planned) : "-");
    cells.push_back(in_percent(row.planned ? relative_difference(total, *row.planned) : kNone));
    cells.push_back(in_mib(row.peak));
    cells.push_back(in_mib(row.other));
    cells.push_back(base::fixed(mib(row.resident_growth), 0));
    table.add_row(cells);
  }
  return table;
}

base::Table fake_step_table(const FakeProcessGroupReport& report) {
  base::Table table({{"mode", base::Align::kLeft},
                     {"counted", base::Align::kRight, "V", "would be sent"},
                     {"formula", base::Align::kRight, "V", "would be sent"},
                     {"step", base::Align::kRight, "s", "time"},
                     {"others", base::Align::kRight, "s", "time"},
                     {"first", base::Align::kRight, "", "own loss"},
                     {"last", base::Align::kRight, "", "own loss"},
                     {"digest", base::Align::kLeft, "", "weights"},
                     {"= ddp", base::Align::kLeft, "", "weights"}});
  const auto copy = static_cast<double>(report.parameter_bytes);
  for (const FakeProcessGroupRow& row : report.rows) {
    table.add_row({row.mode, base::fixed(static_cast<double>(row.sent) / copy, 4),
                   base::fixed(static_cast<double>(row.formula_sent) / copy, 4),
                   base::fixed(row.step_seconds, 3), base::fixed(row.source_seconds, 3),
                   base::fixed(row.losses.empty() ? kNone : row.losses.front(), 4),
                   base::fixed(row.losses.empty() ? kNone : row.losses.back(), 4), kNotApplicable,
                   kNotApplicable});
  }
  return table;
}

std::string to_text(const FakeProcessGroupReport& report) {
  return fmt::format(
      "{}: {} parameters, rank {} of {} in a fake process group, {}, {}, {}, cpu, {} x {} tokens a "
      "rank, "
      "{} step{}\n\n{}\n{}\n"
      "Held: this rank's live bytes by the allocator after a step, before gradients are cleared. "
      "Formula: the stage's, with the\n"
      "padding that its layout states. Without padding: P parameters over N ranks, or what this "
      "rank owns where tensors are not cut.\n"
      "Nothing was sent, and the other ranks never trained: their parts are the first values, so "
      "weights are not compared (n/a).\n"
      "Would be sent: gradients and parameters in a step. Others: the part of the step in which "
      "theirs were made. The peak lacks\n"
      "the scratch of real reductions.\n"
      "MiB = 2^20 bytes. V = {:.2f} MiB, one copy of the parameters.\n",
      report.model, base::with_thousands(report.parameters), report.rank, report.world_size,
      report.task, report.optimizer, report.dtype, report.batch_size, report.sequence_length,
      report.steps, report.steps == 1 ? "" : "s", fake_memory_table(report).to_text(),
      fake_step_table(report).to_text(), mib(report.parameter_bytes));
}

base::Json to_json(const FakeProcessGroupRow& row) {
  return {{"mode", row.mode},
          {"measured", to_json(row.measured)},
          {"formula", to_json(row.formula)},
          {"formula_difference", relative_difference(row.measured.total(), row.formula.total())},
          {"planned_bytes", row.planned ? base::Json(*row.planned) : base::Json(nullptr)},
          {"other_bytes", row.other},
          {"peak_bytes", row.peak},
          {"resident_growth_bytes", row.resident_growth},
          {"sent_bytes", row.sent},
          {"formula_sent_bytes", row.formula_sent},
          {"step_seconds", row.step_seconds},
          {"source_seconds", row.source_seconds},
          {"losses", row.losses},
          {"every_piece_changed", row.every_piece_changed},
          {"digest", nullptr},
          {"identical_to_ddp", nullptr}};
}

FakeProcessGroupRow fake_row_from_json(const base::Json& json) {
  FakeProcessGroupRow row;
  row.mode = json.at("mode").get<std::string>();
  row.measured = states_from_json(json.at("measured"));
  row.formula = states_from_json(json.at("formula"));
  if (!json.at("planned_bytes").is_null()) {
    row.planned = json.at("planned_bytes").get<std::int64_t>();
  }
  row.other = json.at("other_bytes").get<std::int64_t>();
  row.peak = json.at("peak_bytes").get<std::int64_t>();
  row.resident_growth = json.at("resident_growth_bytes").get<std::int64_t>();
  row.sent = json.at("sent_bytes").get<std::int64_t>();
  row.formula_sent = json.at("formula_sent_bytes").get<std::int64_t>();
  row.step_seconds = json.at("step_seconds").get<double>();
  row.source_seconds = json.at("source_seconds").get<double>();
  // A number that was not finite was written as null.
  for (const base::Json& loss : json.at("losses")) {
    row.losses.push_back(loss.is_null() ? kNone : loss.get<double>());
  }
  row.every_piece_changed = json.at("every_piece_changed").get<bool>();
  return row;
}

base::Json to_json(const FakeProcessGroupReport& report) {
  base::Json json = {{"fake_process_group",
                      {{"size", report.world_size},
                       {"rank", report.rank},
                       {"note",
                        "one rank alone: nothing was sent, and the parts of the other ranks are "
                        "first values"}}},
                     {"model", report.model},
                     {"parameters", report.parameters},
                     {"parameter_bytes", report.parameter_bytes},
                     {"task", report.task},
                     {"dtype", report.dtype},
                     {"device", "cpu"},
                     {"optimizer", report.optimizer},
                     {"steps", report.steps},
                     {"batch_size", report.batch_size},
                     {"sequence_length", report.sequence_length},
                     {"modes", base::Json::array()}};
  for (const FakeProcessGroupRow& row : report.rows) json["modes"].push_back(to_json(row));
  return json;
}

std::vector<std::string> verdict(const FakeProcessGroupReport& report) {
  std::vector<std::string> failures;
  if (report.rows.empty()) failures.push_back("no mode ran");
  for (const FakeProcessGroupRow& row : report.rows) check_row(row, failures);
  return failures;
}

}  // namespace zero::ladder
