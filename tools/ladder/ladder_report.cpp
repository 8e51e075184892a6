#include "ladder_report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

namespace zero::ladder {
namespace {

using tools::Json;

double relative_difference(double measured, double predicted) {
  if (!(predicted > 0)) return std::numeric_limits<double>::quiet_NaN();
  return (measured - predicted) / predicted;
}

// What all ranks have, or null.
Json common_digest(const Json& ranks) {
  const Json& first = ranks.front()["digest"];
  const bool same =
      std::ranges::all_of(ranks, [&](const Json& rank) { return rank["digest"] == first; });
  return same && first != "" ? first : Json();
}

// The row of ddp, or of ddp in the order of a mesh; nullptr if neither ran.
const Json* ddp_row(const Json& report) {
  for (const Json& mode : report["modes"]) {
    const auto name = mode["mode"].get<std::string>();
    if (name == "ddp" || name.starts_with("hddp")) return &mode;
  }
  return nullptr;
}

// What is wrong with the total of a mode or of a rank; empty if nothing is. The formula speaks of
// model states. What else is alive (tables of positions, say) does not grow with the model and has
// a bound of its own, so that it weighs the same for a small model and a large one.
std::string wrong_total(const Json& row, double most_other) {
  const double other = number_in(row, "other_mib"), predicted = number_in(row, "formula_mib");
  const double measured = number_in(row, "total_mib") - other;
  const double difference = relative_difference(measured, predicted);
  if (other > most_other) {
    return fmt::format("{:.2f} MiB are alive that are no model states (at most {} MiB)", other,
                       most_other);
  }
  // A rank of many may own nothing.
  if (predicted == 0 && std::abs(measured) < 1e-9) return "";
  if (std::abs(difference) <= kFormulaTolerance) return "";
  return fmt::format(
      "model states of {:.2f} MiB are {:.3f} % off the formula's {:.2f} MiB (at most {} %)",
      measured, 100 * difference, predicted, 100 * kFormulaTolerance);
}

bool has_groups(const Json& report, const std::string& mode) {
  const auto says = [&](const char* text) { return mode.find(text) != std::string::npos; };
  return has_mesh(report) || says("shard_size=") || says("group_size=") || says(":by_rank");
}

// Everything that is wrong with a mode.
std::vector<std::string> faults(const Json& report, const Json& mode) {
  std::vector<std::string> found;
  const auto expect = [&](bool holds, const std::string& otherwise) {
    if (!holds) found.push_back(otherwise);
  };
  const int ranks = report["world_size"];
  const std::string nothing = ", so equal weights prove nothing";
  const double most_other =
      kLargestOtherMib + (has_groups(report, mode["mode"]) ? kGroupBlockMib * ranks : 0);
  const std::string of_mode = wrong_total(mode, most_other);
  expect(of_mode.empty(), of_mode);
  for (const Json& rank : mode["ranks"]) {
    const auto name = fmt::format("rank {}", rank["rank"].get<int>());
    expect(rank["digest"] == mode["ranks"][0]["digest"], name + " has other weights than rank 0");
    const std::string wrong = wrong_total(rank, most_other);
    expect(wrong.empty(), name + ": " + wrong);
    for (const std::string axis : {"data", "pipeline"}) {
      const Json &sent = rank["sent_" + axis + "_bytes"],
                 &formula = rank["formula_" + axis + "_bytes"];
      expect(sent == formula,
             fmt::format("{} sent {} bytes on the {} axis in a step, the formula says {}", name,
                         sent.dump(), axis, formula.dump()));
    }
  }
  expect(mode["digest"].is_null() || mode["identical_to_ddp"] != false,
         "weights differ from ddp's");
  expect(mode["every_tensor_changed"] == true,
         "a trainable tensor still has its first value" + nothing);
  expect(ranks == 1 || mode["batches_differed"] == true,
         "two ranks trained on the same batch" + nothing);
  expect(ranks == 1 || mode["gradients_differed"] == true,
         "two ranks had the same gradients before the reduction" + nothing);
  for (const Json& loss : mode["losses"]) {
    expect(loss.is_number() && std::isfinite(loss.get<double>()), "a loss is not finite");
  }
  expect(mode["identical_to_ddp"].is_null() || mode["losses"] == (*ddp_row(report))["losses"],
         "losses differ from ddp's");
  return found;
}

}  // namespace

double number_in(const Json& row, const std::string& key) {
  const Json& value = row.at(key);
  return value.is_null() ? std::numeric_limits<double>::quiet_NaN() : value.get<double>();
}

Json mode_row(const std::string& mode, bool rounds, const Json& results, int cell) {
  const Json& first = results.front();
  Json row = {{"mode", mode},
              {"losses", first["losses"]},
              {"loss_first", first["losses"].front()},
              {"loss_last", first["losses"].back()},
              {"rounds", rounds},
              {"every_tensor_changed", true}};
  std::set<std::pair<int, std::string>> batches, gradients;  // by place on the other axes
  for (const Json& result : results) {
    const int place = result["row"]["rank"].get<int>() % cell;
    batches.emplace(place, result["batch_digest"].get<std::string>());
    gradients.emplace(place, result["gradient_digest"].get<std::string>());
    if (result["every_tensor_changed"] == false) row["every_tensor_changed"] = false;
    row["ranks"].push_back(result["row"]);
  }
  row["batches_differed"] = batches.size() == results.size();
  row["gradients_differed"] = gradients.size() == results.size();
  return row;
}

void derive(Json& report) {
  for (Json& mode : report["modes"]) {
    const Json ranks = mode["ranks"];
    for (const auto& [key, ignored] : ranks.front().items()) {
      if (key == "rank" || key == "digest") continue;
      double sum = 0, most = std::numeric_limits<double>::quiet_NaN();
      for (const Json& rank : ranks) {
        sum += number_in(rank, key);
        most = std::fmax(most, number_in(rank, key));
      }
      const std::string name = key == "sent_bytes" ? "sent_bytes_per_rank" : key;
      mode[name] = sum / static_cast<double>(ranks.size());
      mode[name + "_max"] = most;
    }
    const double copy = number_in(report, "parameter_bytes");
    mode["sent_in_v"] = number_in(mode, "sent_bytes_per_rank") / copy;
    mode["sent_in_v_max"] = number_in(mode, "sent_bytes_per_rank_max") / copy;
    mode["formula_difference"] =
        relative_difference(number_in(mode, "total_mib"), number_in(mode, "formula_mib"));
    mode["digest"] = common_digest(ranks);
  }
  const Json* ddp = ddp_row(report);
  for (Json& mode : report["modes"]) {
    mode["ratio"] = nullptr;
    mode["identical_to_ddp"] = nullptr;
    if (ddp == nullptr) continue;
    mode["ratio"] = number_in(mode, "total_mib") / number_in(*ddp, "total_mib");
    if (mode["rounds"] == true || report.contains("fake_process_group")) continue;
    mode["identical_to_ddp"] = !mode["digest"].is_null() && mode["digest"] == (*ddp)["digest"];
  }
}

std::vector<std::string> verdict(const Json& report) {
  std::vector<std::string> failures;
  for (const Json& mode : report["modes"]) {
    const std::string name = mode["mode"].get<std::string>() + ": ";
    for (const std::string& fault : faults(report, mode)) failures.push_back(name + fault);
  }
  return failures;
}

}  // namespace zero::ladder
