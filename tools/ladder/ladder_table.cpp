#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include <tools/support/table.hpp>
#include <zero/base/names.hpp>

#include "ladder_report.hpp"

namespace zero::ladder {
namespace {

using tools::Json;

bool is_fake(const Json& report) { return report.contains("fake_process_group"); }

// Weights of a fake process group cannot be compared.
std::string identity(const Json& report, const Json& mode) {
  if (is_fake(report)) return "n/a";
  if (mode["rounds"] == true) return "rounded";
  if (mode["identical_to_ddp"].is_null()) return "-";
  return mode["identical_to_ddp"] == true ? "yes" : "NO";
}

// A column after that of the mode's name: the text or the number under `key` of a mode. Without a
// header it is two, mean and max.
struct Figure {
  std::string header, unit, group, key;
  int decimals = 0;
  double divisor = 1;
};

std::string table_of(const Json& modes, const std::vector<Figure>& figures) {
  std::vector<tools::Column> columns;
  std::vector<std::vector<std::string>> rows(modes.size());
  const auto add = [&](const Figure& figure) {
    const bool is_text = modes[0][figure.key].is_string();
    columns.push_back({figure.header, is_text ? tools::Align::kLeft : tools::Align::kRight,
                       figure.unit, figure.group});
    for (std::size_t m = 0; m < rows.size(); ++m) {
      rows[m].push_back(is_text ? modes[m][figure.key].get<std::string>()
                                : tools::fixed(number_in(modes[m], figure.key) / figure.divisor,
                                               figure.decimals));
    }
  };
  add({"mode", "", "", "mode"});
  for (Figure figure : figures) {
    const bool is_pair = figure.header.empty();
    if (is_pair) figure.header = "mean";
    add(figure);
    if (!is_pair) continue;
    figure.header = "max";
    figure.key += "_max";
    add(figure);
  }
  return tools::table_text(columns, rows);
}

std::string short_table(const Json& modes) {
  return table_of(modes, {{"parameters", "MiB", "", "parameter_mib", 2},
                          {"gradients", "MiB", "", "gradient_mib", 2},
                          {"optimizer", "MiB", "", "optimizer_mib", 2},
                          {"total", "MiB", "", "total_mib", 2},
                          {"ratio", "", "", "ratio", 3},
                          {"sent", "V", "", "sent_in_v", 4},
                          {"same weights", "", "", "identity"}});
}

std::string memory_table(const Json& modes) {
  return table_of(modes, {{"", "MiB", "parameters", "parameter_mib", 2},
                          {"", "MiB", "gradients", "gradient_mib", 2},
                          {"", "MiB", "optimizer", "optimizer_mib", 2},
                          {"", "MiB", "total", "total_mib", 2},
                          {"ratio", "", "", "ratio", 3},
                          {"formula", "MiB", "", "formula_mib", 2},
                          {"off", "%", "", "formula_difference", 3, 0.01},
                          {"", "MiB", "peak", "peak_mib", 2},
                          {"states", "MiB", "peak", "peak_states_mib_max", 2},
                          {"other", "MiB", "max", "other_mib_max", 2},
                          {"RSS+", "MiB", "max", "resident_growth_mib_max", 0}});
}

std::string step_table(const Json& report, const Json& modes) {
  const std::string sent = "sent by a rank in a step", time = "time of a step";
  const double copy = number_in(report, "parameter_bytes");
  std::vector<Figure> figures = {{"", "V", sent, "sent_in_v", 4},
                                 {"grads", "V", sent, "sent_gradient_bytes", 4, copy},
                                 {"params", "V", sent, "sent_parameter_bytes", 4, copy},
                                 {"control", "bytes", sent, "sent_control_bytes", 0},
                                 {"step", "s", time, "step_seconds", 3},
                                 {"forward", "s", time, "forward_seconds", 3},
                                 {"backward", "s", time, "backward_seconds", 3},
                                 {"optimizer", "s", time, "optimizer_seconds", 3},
                                 {"exposed", "s", time, "communication_seconds", 3},
                                 {"in flight", "s", time, "in_flight_seconds", 3},
                                 {"first", "", "loss", "loss_first", 4},
                                 {"last", "", "loss", "loss_last", 4},
                                 {"digest", "", "weights", "short_digest"},
                                 {"= ddp", "", "weights", "identity"}};
  const double compute = number_in(report, "compute_seconds");
  if (compute > 0) {
    figures.insert(figures.end() - 4, {"/compute", "", time, "step_seconds", 2, compute});
  }
  return table_of(modes, figures);
}

// What each axis of the mesh carried.
std::string axis_table(const Json& report, const Json& modes) {
  std::vector<Figure> figures;
  for (const auto& [axis, size] : report["mesh"].items()) {
    if (axis != "data" && size == 1) continue;
    figures.push_back({"", "V", fmt::format("sent: {} axis", axis), "sent_" + axis + "_bytes", 4,
                       number_in(report, "parameter_bytes")});
  }
  return table_of(modes, figures);
}

std::string title(const Json& report) {
  const auto text = [&](const char* key) { return report[key].get<std::string>(); };
  const std::int64_t steps = report["steps"];
  std::string more;
  if (report["activation_checkpointing"] == true) more += ", activation checkpointing";
  if (report["partition_activations"] == true) more += " (partitioned)";
  if (report["activations_on_host"] == true) {
    more += report["device"] == "cpu" ? " (on the host, as all on the CPU)" : " (on the host)";
  }
  if (report["sequence_parallel"] == true) more += ", sequence parallel";
  return fmt::format("{}: {} parameters, {}, {}, {}, {}, {}, {}, {} step{}{}\n", text("model"),
                     base::with_thousands(report["parameters"]), ranks_text(report), text("task"),
                     text("optimizer"), text("dtype"), text("device"), batch_text(report), steps,
                     steps == 1 ? "" : "s", more);
}

// Explains the numbers if the ranks are a mesh.
std::string mesh_legend(const Json& report) {
  if (!has_mesh(report)) return "";
  const int data_ranks = report["mesh"]["data"];
  return fmt::format(
      "The tensor and pipeline axes leave each rank about 1/{} of the model. The mode runs over "
      "the\n"
      "ranks of the data axis, and sent is what they send on it; --wide has the other axes too.\n",
      report["world_size"].get<int>() / data_ranks);
}

// Explains the marks in place of "yes" that occur.
std::string marks_legend(const Json& modes) {
  const auto any = [&](const char* mark) {
    return std::ranges::any_of(modes, [&](const Json& mode) { return mode["identity"] == mark; });
  };
  return fmt::format("{}{}",
                     any("rounded") ? "\"rounded\": the mode rounds what it sends, or the host "
                                      "updates for a GPU and rounds otherwise.\n"
                                    : "",
                     any("-") ? "\"-\": ddp did not run.\n" : "");
}

std::string short_legend(const Json& report) {
  return fmt::format(
      "Means over the ranks. MiB (2^20 bytes) alive after a step, before gradients are cleared.\n"
      "Sent: by a rank in a step, in V = {:.2f} MiB, one copy of the parameters.\n{}{}"
      "--wide prints maxima, peaks, times and losses.\n",
      mib(report["parameter_bytes"]), mesh_legend(report),
      is_fake(report)
          ? "Nothing was sent: the bytes are those that real ranks would send. Weights are not "
            "compared (n/a),\nbecause the other ranks never trained. "
          : "Same weights: every bit is that of ddp. ");
}

std::string wide_legend(const Json& report) {
  std::string text = fmt::format(
      "MiB (2^20 bytes) are the allocator's live bytes after a step, before gradients are "
      "cleared,\n"
      "less those before the model was built; peak: within a step. Mean and max are over the "
      "ranks.\n"
      "Seconds are medians of a rank; the phases exclude exposed communication, a part of in "
      "flight.\n"
      "V = {:.2f} MiB, one copy of the parameters. docs/ladder.md explains each column.\n{}",
      mib(report["parameter_bytes"]), mesh_legend(report));
  if (is_fake(report)) {
    text +=
        "Nothing was sent, and the other ranks never trained: their parts are the first values, "
        "so\n"
        "weights are not compared (n/a). Sent is what real ranks would send, exposed the time to\n"
        "generate the other ranks' parts. The peak lacks the scratch of real reductions.\n";
  }
  if (report["compute_seconds"].is_null()) return text;
  return text + fmt::format("/compute: the step relative to {:.3f} s, that of every rank alone.\n",
                            number_in(report, "compute_seconds"));
}

}  // namespace

bool has_mesh(const Json& report) { return report["mesh"]["data"] != report["world_size"]; }

std::string ranks_text(const Json& report) {
  const int ranks = report["world_size"];
  std::string text = fmt::format("{} rank{}", ranks, ranks == 1 ? "" : "s");
  if (is_fake(report)) {
    text = fmt::format("rank {} of {} in a fake process group",
                       report["fake_process_group"]["rank"].get<int>(), ranks);
  }
  std::vector<std::string> axes;
  for (const auto& [axis, size] : report["mesh"].items()) {
    if (axis == "data" || size != 1) axes.push_back(fmt::format("{} {}", axis, size.get<int>()));
  }
  if (has_mesh(report)) text += fmt::format(" ({})", fmt::join(axes, " x "));
  const std::string link = report.value("link", "");
  if (link.empty()) return text;
  return text +
         fmt::format(", {} a host, {} between hosts", report["ranks_per_host"].get<int>(), link);
}

std::string batch_text(const Json& report) {
  const std::int64_t micro_batches = report["micro_batches"];
  return fmt::format("{}{} x {} tokens a rank",
                     micro_batches == 1 ? "" : fmt::format("{} micro-batches of ", micro_batches),
                     report["batch_size"].get<std::int64_t>(),
                     report["sequence_length"].get<std::int64_t>());
}

std::string to_text(const Json& report, bool wide) {
  Json modes = report["modes"];
  for (Json& mode : modes) {
    mode["identity"] = identity(report, mode);
    mode["short_digest"] = is_fake(report) ? "n/a"
                           : mode["digest"].is_null()
                               ? "differs"
                               : mode["digest"].get<std::string>().substr(0, 12);
  }
  if (!wide) {
    return title(report) + "\n" + short_table(modes) + "\n" + short_legend(report) +
           marks_legend(modes);
  }
  return title(report) + "\n" + memory_table(modes) + "\n" + step_table(report, modes) + "\n" +
         (has_mesh(report) ? axis_table(report, modes) + "\n" : "") + wide_legend(report) +
         marks_legend(modes);
}

}  // namespace zero::ladder
