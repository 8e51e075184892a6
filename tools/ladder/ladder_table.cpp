#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <utility>

#include <zero/base/table.hpp>

#include "ladder_report.hpp"

namespace zero::ladder {
namespace {

constexpr double kNotMeasured = std::numeric_limits<double>::quiet_NaN();

// A column, and what it says of a mode.
struct Figure {
  base::Column column;
  std::function<std::string(const ModeRow&)> text;
};

using Value = std::function<double(const ModeRow&)>;

Figure number(const char* header, const char* unit, const char* group, int decimals, Value value) {
  return {{header, base::Align::kRight, unit, group},
          [decimals, value = std::move(value)](const ModeRow& mode) {
            return base::fixed(value(mode), decimals);
          }};
}

template <typename Member>
Value mean(Member value, double unit = 1) {
  return [=](const ModeRow& mode) { return spread(mode, value).mean / unit; };
}

template <typename Member>
Value largest(Member value) {
  return [=](const ModeRow& mode) { return spread(mode, value).max; };
}

Figure mode_name() {
  return {{"mode", base::Align::kLeft}, [](const ModeRow& mode) { return mode.mode; }};
}

Figure ratio_to_ddp(const LadderReport& report) {
  return number("ratio", "", "", 3, [&report](const ModeRow& mode) {
    return ratio(report, mode).value_or(kNotMeasured);
  });
}

base::Table table_of(const LadderReport& report, const std::vector<Figure>& figures) {
  std::vector<base::Column> columns;
  for (const Figure& figure : figures) columns.push_back(figure.column);
  base::Table table(std::move(columns));
  for (const ModeRow& mode : report.modes) {
    std::vector<std::string> cells;
    for (const Figure& figure : figures) cells.push_back(figure.text(mode));
    table.add_row(std::move(cells));
  }
  return table;
}

// Weights of a fake process group cannot be compared.
std::string digest(const LadderReport& report, const ModeRow& mode) {
  if (report.fake_rank) return "n/a";
  return common_digest(mode).value_or("differs").substr(0, 12);
}

std::string identity(const LadderReport& report, const ModeRow& mode) {
  if (report.fake_rank) return "n/a";
  if (mode.rounds) return "rounded";
  const auto identical = identical_to_ddp(report, mode);
  if (!identical) return "-";
  return *identical ? "yes" : "NO";
}

// Bytes of one copy of the parameters, V.
double copy_of(const LadderReport& report) { return static_cast<double>(report.parameter_bytes); }

base::Table short_table(const LadderReport& report) {
  return table_of(
      report, {mode_name(),
               number("parameters", "MiB", "", 2, mean(&RankRow::parameter_mib)),
               number("gradients", "MiB", "", 2, mean(&RankRow::gradient_mib)),
               number("optimizer", "MiB", "", 2, mean(&RankRow::optimizer_mib)),
               number("total", "MiB", "", 2, mean(&RankRow::total_mib)),
               ratio_to_ddp(report),
               number("sent", "V", "", 4,
                      [&](const ModeRow& mode) { return sent_bytes(mode).mean / copy_of(report); }),
               {{"same weights", base::Align::kLeft},
                [&](const ModeRow& mode) { return identity(report, mode); }}});
}

base::Table memory_table(const LadderReport& report) {
  std::vector<Figure> figures = {mode_name()};
  const auto add = [&](const char* group, double RankRow::*value) {
    figures.push_back(number("mean", "MiB", group, 2, mean(value)));
    figures.push_back(number("max", "MiB", group, 2, largest(value)));
  };
  add("parameters", &RankRow::parameter_mib);
  add("gradients", &RankRow::gradient_mib);
  add("optimizer", &RankRow::optimizer_mib);
  add("total", &RankRow::total_mib);
  figures.push_back(ratio_to_ddp(report));
  figures.push_back(number("formula", "MiB", "", 2, mean(&RankRow::formula_mib)));
  figures.push_back(number("off", "%", "", 3,
                           [](const ModeRow& mode) { return 100 * formula_difference(mode); }));
  add("peak", &RankRow::peak_mib);
  figures.push_back(number("states", "MiB", "peak", 2, largest(&RankRow::peak_states_mib)));
  figures.push_back(number("other", "MiB", "max", 2, largest(&RankRow::other_mib)));
  figures.push_back(number("RSS+", "MiB", "max", 0, largest(&RankRow::resident_growth_mib)));
  return table_of(report, figures);
}

base::Table step_table(const LadderReport& report) {
  const double copy = copy_of(report);
  std::vector<Figure> figures = {mode_name()};
  const auto add_sent = [&](const char* header, Value value) {
    figures.push_back(number(header, "V", "sent by a rank in a step", 4, std::move(value)));
  };
  add_sent("mean", [=](const ModeRow& mode) { return sent_bytes(mode).mean / copy; });
  add_sent("max", [=](const ModeRow& mode) { return sent_bytes(mode).max / copy; });
  add_sent("grads", mean(&RankRow::sent_gradient_bytes, copy));
  add_sent("params", mean(&RankRow::sent_parameter_bytes, copy));
  figures.push_back(number("control", "bytes", "sent by a rank in a step", 0,
                           mean(&RankRow::sent_control_bytes)));
  const auto add_seconds = [&](const char* header, double RankRow::*value) {
    figures.push_back(number(header, "s", "time of a step", 3, mean(value)));
  };
  add_seconds("step", &RankRow::step_seconds);
  add_seconds("forward", &RankRow::forward_seconds);
  add_seconds("backward", &RankRow::backward_seconds);
  add_seconds("optimizer", &RankRow::optimizer_seconds);
  add_seconds("exposed", &RankRow::communication_seconds);
  add_seconds("in flight", &RankRow::in_flight_seconds);
  if (report.compute_seconds) {
    figures.push_back(number("/compute", "", "time of a step", 2,
                             mean(&RankRow::step_seconds, *report.compute_seconds)));
  }
  figures.push_back(number("first", "", "loss", 4, [](const ModeRow& mode) {
    return mode.losses.empty() ? kNotMeasured : mode.losses.front();
  }));
  figures.push_back(number("last", "", "loss", 4, [](const ModeRow& mode) {
    return mode.losses.empty() ? kNotMeasured : mode.losses.back();
  }));
  figures.push_back({{"digest", base::Align::kLeft, "", "weights"},
                     [&](const ModeRow& mode) { return digest(report, mode); }});
  figures.push_back({{"= ddp", base::Align::kLeft, "", "weights"},
                     [&](const ModeRow& mode) { return identity(report, mode); }});
  return table_of(report, figures);
}

// What each axis of the mesh carried.
base::Table axis_table(const LadderReport& report) {
  std::vector<Figure> figures = {mode_name()};
  const double copy = copy_of(report);
  const auto add = [&](const char* axis, std::int64_t RankRow::*value) {
    figures.push_back(number("mean", "V", axis, 4, mean(value, copy)));
    figures.push_back(number("max", "V", axis, 4,
                             [=](const ModeRow& mode) { return spread(mode, value).max / copy; }));
  };
  add("sent: data axis", &RankRow::sent_data_bytes);
  if (report.stages > 1) add("sent: pipeline axis", &RankRow::sent_pipeline_bytes);
  if (report.tensor_ranks > 1) add("sent: tensor axis", &RankRow::sent_tensor_bytes);
  return table_of(report, figures);
}

std::string title(const LadderReport& report) {
  const std::string ranks = report.fake_rank ? fmt::format("rank {} of {} in a fake process group",
                                                           *report.fake_rank, report.world_size)
                                             : fmt::format("{} rank{}", report.world_size,
                                                           report.world_size == 1 ? "" : "s");
  std::string more;
  if (report.activation_checkpointing) more += ", activation checkpointing";
  if (report.partition_activations) more += " (partitioned)";
  if (report.sequence_parallel) more += ", sequence parallel";
  if (report.stages > 1) more += ", " + report.pipeline_schedule;
  return fmt::format("{}: {} parameters, {}{}, {}, {}, {}, {}, {}, {} step{}{}", report.model,
                     base::with_thousands(report.parameters), ranks, mesh_text(report), report.task,
                     report.optimizer, report.dtype, report.device, batch_text(report),
                     report.steps, report.steps == 1 ? "" : "s", more);
}

// Explains the numbers if the ranks are a mesh.
std::string mesh_legend(const LadderReport& report) {
  if (!report.has_mesh()) return "";
  return fmt::format(
      "The tensor and pipeline axes leave each rank about 1/{} of the model.\n"
      "The mode runs over {} data rank{}. Sent is on the data axis; --wide has a table with the "
      "other axes.\n",
      report.stages * report.tensor_ranks, report.data_ranks(),
      report.data_ranks() == 1 ? "" : "s");
}

// Explains the marks in place of "yes" that occur.
std::string marks_legend(const LadderReport& report) {
  std::string text;
  const auto explain = [&](const std::string& mark, const char* meaning) {
    const auto has_mark = [&](const ModeRow& mode) { return identity(report, mode) == mark; };
    if (std::ranges::any_of(report.modes, has_mark)) {
      text += fmt::format("\"{}\": {}\n", mark, meaning);
    }
  };
  explain("rounded", "the mode rounds what it sends.");
  explain("-", "ddp did not run.");
  return text;
}

std::string short_legend(const LadderReport& report) {
  std::string text = fmt::format(
      "Means over the ranks. MiB (2^20 bytes) alive after a step, before gradients are cleared.\n"
      "Sent: by a rank in a step, in V = {:.2f} MiB, one copy of the parameters.\n{}",
      mib(report.parameter_bytes), mesh_legend(report));
  if (report.fake_rank) {
    return text +
           "Nothing was sent: the bytes are those that real ranks would send. Weights are not "
           "compared (n/a),\nbecause the other ranks never trained. --wide prints maxima, peaks, "
           "times and losses.\n";
  }
  return text +
         "Same weights: every bit is that of ddp. --wide prints maxima, peaks, times and "
         "losses.\n" +
         marks_legend(report);
}

std::string wide_legend(const LadderReport& report) {
  std::string text = fmt::format(
      "Memory: the allocator's live bytes after a step, before gradients are cleared, less those\n"
      "before the model was built. Mean and max are over the ranks.\n"
      "Peak: the largest value within a step. States (max over ranks) counts only parameters,\n"
      "gradients and optimizer states.\n"
      "RSS+: the growth of the process's resident set.\n"
      "Off: how far the mean total is from the formula.\n"
      "Seconds: means over ranks of each rank's median. Forward, backward and optimizer exclude\n"
      "exposed communication.\n"
      "In flight: seconds in which at least one collective had started and its wait had not\n"
      "ended; exposed time is a part of it.\n"
      "MiB = 2^20 bytes. V = {:.2f} MiB, one copy of the parameters.\n{}",
      mib(report.parameter_bytes), mesh_legend(report));
  if (report.fake_rank) {
    text +=
        "Nothing was sent, and the other ranks never trained: their parts are the first values,\n"
        "so weights are not compared (n/a). Sent is what real ranks would send. Exposed is the\n"
        "time to generate the other ranks' parts. The peak lacks the scratch of real "
        "reductions.\n";
  }
  if (report.compute_seconds) {
    text += fmt::format(
        "/compute: the step relative to {:.3f} s, the step when every rank trains by itself at the "
        "same\ntime and sends nothing.\n",
        *report.compute_seconds);
  }
  return text + marks_legend(report);
}

}  // namespace

std::string mesh_text(const LadderReport& report) {
  if (!report.has_mesh()) return "";
  std::string text = fmt::format(" (data {}", report.data_ranks());
  if (report.stages > 1) text += fmt::format(" x pipeline {}", report.stages);
  if (report.tensor_ranks > 1) text += fmt::format(" x tensor {}", report.tensor_ranks);
  return text + ")";
}

std::string batch_text(const LadderReport& report) {
  return fmt::format(
      "{}{} x {} tokens a rank",
      report.micro_batches == 1 ? "" : fmt::format("{} micro-batches of ", report.micro_batches),
      report.batch_size, report.sequence_length);
}

std::string to_text(const LadderReport& report, bool wide) {
  if (!wide) {
    return fmt::format("{}\n\n{}\n{}", title(report), short_table(report).to_text(),
                       short_legend(report));
  }
  return fmt::format("{}\n\n{}\n{}\n{}{}", title(report), memory_table(report).to_text(),
                     step_table(report).to_text(),
                     report.has_mesh() ? axis_table(report).to_text() + "\n" : "",
                     wide_legend(report));
}

}  // namespace zero::ladder
