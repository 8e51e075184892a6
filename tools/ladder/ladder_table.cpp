#include <fmt/format.h>

#include <limits>

#include "ladder_report.hpp"

namespace zero::ladder {
namespace {

constexpr double kNotMeasured = std::numeric_limits<double>::quiet_NaN();

void add_pair(std::vector<std::string>& cells, Spread spread, double unit, int decimals) {
  cells.push_back(base::fixed(spread.mean / unit, decimals));
  cells.push_back(base::fixed(spread.max / unit, decimals));
}

// Weights of a fake process group cannot be compared.
std::string digest(const LadderReport& report, const ModeRow& mode) {
  if (report.fake_rank) return "n/a";
  return common_digest(mode).value_or("differs").substr(0, 12);
}

std::string identity(const LadderReport& report, const ModeRow& mode) {
  if (report.fake_rank) return "n/a";
  const auto identical = identical_to_ddp(report, mode);
  if (!identical) return "-";
  return *identical ? "yes" : "NO";
}

std::string title(const LadderReport& report) {
  const std::string ranks = report.fake_rank ? fmt::format("rank {} of {} in a fake process group",
                                                           *report.fake_rank, report.world_size)
                                             : fmt::format("{} rank{}", report.world_size,
                                                           report.world_size == 1 ? "" : "s");
  return fmt::format("{}: {} parameters, {}, {}, {}, {}, {}, {} x {} tokens a rank, {} step{}",
                     report.model, base::with_thousands(report.parameters), ranks, report.task,
                     report.optimizer, report.dtype, report.device, report.batch_size,
                     report.sequence_length, report.steps, report.steps == 1 ? "" : "s");
}

std::vector<std::string> legend(const LadderReport& report) {
  std::vector<std::string> lines = {
      "Memory: the allocator's live bytes after a step, before gradients are cleared, less those "
      "before the model was built;",
      "the peak is over a whole step: of everything, and (states, max) of parameters, gradients "
      "and optimizer states together.",
      "RSS+: the growth of the process's resident set. Mean and max are over the ranks.",
      "off: how far the mean total is from the formula. Seconds: means over ranks of each rank's "
      "median; exposed communication counts apart.",
      "In flight: from the first start of a collective to the end of the last wait, whatever runs "
      "meanwhile; exposed time is a part of it.",
      fmt::format("MiB = 2^20 bytes. V = {:.2f} MiB, one copy of the parameters.",
                  mib(report.parameter_bytes)),
  };
  if (report.fake_rank) {
    lines.push_back(
        "Nothing was sent, and the other ranks never trained: their parts are the first values, so "
        "weights are not compared (n/a).");
    lines.push_back(
        "Sent is what would be; exposed is the making of the others' parts; the peak lacks the "
        "scratch of real reductions.");
  }
  if (report.compute_seconds) {
    lines.push_back(fmt::format(
        "A whole step of every rank training by itself, all at once, nothing sent: {:.3f} s.",
        *report.compute_seconds));
  }
  return lines;
}

}  // namespace

base::Table memory_table(const LadderReport& report) {
  std::vector<base::Column> columns = {{"mode", base::Align::kLeft}};
  const auto add_columns = [&](const char* group) {
    columns.push_back({"mean", base::Align::kRight, "MiB", group});
    columns.push_back({"max", base::Align::kRight, "MiB", group});
  };
  for (const char* group : {"parameters", "gradients", "optimizer", "total"}) add_columns(group);
  columns.push_back({"ratio"});
  columns.push_back({"formula", base::Align::kRight, "MiB"});
  columns.push_back({"off", base::Align::kRight, "%"});
  add_columns("peak");
  columns.push_back({"states", base::Align::kRight, "MiB", "peak"});
  columns.push_back({"other", base::Align::kRight, "MiB", "max"});
  columns.push_back({"RSS+", base::Align::kRight, "MiB", "max"});

  base::Table table(columns);
  for (const ModeRow& mode : report.modes) {
    std::vector<std::string> cells = {mode.mode};
    for (const auto value : {&RankRow::parameter_mib, &RankRow::gradient_mib,
                             &RankRow::optimizer_mib, &RankRow::total_mib}) {
      add_pair(cells, spread(mode, value), 1, 2);
    }
    cells.push_back(base::fixed(ratio(report, mode).value_or(kNotMeasured), 3));
    cells.push_back(base::fixed(mode.formula_mib, 2));
    cells.push_back(base::fixed(100 * formula_difference(mode), 3));
    add_pair(cells, spread(mode, &RankRow::peak_mib), 1, 2);
    cells.push_back(base::fixed(spread(mode, &RankRow::peak_states_mib).max, 2));
    cells.push_back(base::fixed(spread(mode, &RankRow::other_mib).max, 2));
    cells.push_back(base::fixed(spread(mode, &RankRow::resident_growth_mib).max, 0));
    table.add_row(cells);
  }
  return table;
}

base::Table step_table(const LadderReport& report) {
  std::vector<base::Column> columns = {{"mode", base::Align::kLeft}};
  for (const char* header : {"mean", "max", "grads", "params"}) {
    columns.push_back({header, base::Align::kRight, "V", "sent by a rank in a step"});
  }
  columns.push_back({"control", base::Align::kRight, "bytes", "sent by a rank in a step"});
  for (const char* header : {"step", "forward", "backward", "optimizer", "exposed", "in flight"}) {
    columns.push_back({header, base::Align::kRight, "s", "time of a step"});
  }
  if (report.compute_seconds) {
    columns.push_back({"/compute", base::Align::kRight, "", "time of a step"});
  }
  columns.push_back({"first", base::Align::kRight, "", "loss"});
  columns.push_back({"last", base::Align::kRight, "", "loss"});
  columns.push_back({"digest", base::Align::kLeft, "", "weights"});
  columns.push_back({"= ddp", base::Align::kLeft, "", "weights"});

  const auto copy = static_cast<double>(report.parameter_bytes);
  base::Table table(columns);
  for (const ModeRow& mode : report.modes) {
    std::vector<std::string> cells = {mode.mode};
    add_pair(cells, sent_bytes(mode), copy, 4);
    cells.push_back(base::fixed(spread(mode, &RankRow::sent_gradient_bytes).mean / copy, 4));
    cells.push_back(base::fixed(spread(mode, &RankRow::sent_parameter_bytes).mean / copy, 4));
    cells.push_back(base::fixed(spread(mode, &RankRow::sent_control_bytes).mean, 0));
    for (const auto value : {&RankRow::step_seconds, &RankRow::forward_seconds,
                             &RankRow::backward_seconds, &RankRow::optimizer_seconds,
                             &RankRow::communication_seconds, &RankRow::in_flight_seconds}) {
      cells.push_back(base::fixed(spread(mode, value).mean, 3));
    }
    if (report.compute_seconds) {
      const double step = spread(mode, &RankRow::step_seconds).mean;
      cells.push_back(base::fixed(step / *report.compute_seconds, 2));
    }
    cells.push_back(base::fixed(mode.losses.empty() ? kNotMeasured : mode.losses.front(), 4));
    cells.push_back(base::fixed(mode.losses.empty() ? kNotMeasured : mode.losses.back(), 4));
    cells.push_back(digest(report, mode));
    cells.push_back(identity(report, mode));
    table.add_row(cells);
  }
  return table;
}

std::string to_text(const LadderReport& report) {
  std::string text = fmt::format("{}\n\n{}\n{}\n", title(report), memory_table(report).to_text(),
                                 step_table(report).to_text());
  for (const std::string& line : legend(report)) text += line + "\n";
  return text;
}

std::string to_markdown(const LadderReport& report) {
  std::string text =
      fmt::format("{}\n\n{}\n{}\n", title(report), memory_table(report).to_markdown(),
                  step_table(report).to_markdown());
  for (const std::string& line : legend(report)) text += line + "\n";
  return text;
}

}  // namespace zero::ladder
