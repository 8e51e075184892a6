#include "report.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <fstream>
#include <iterator>
#include <set>
#include <tuple>

#include <zero/base/error.hpp>
#include <zero/base/json.hpp>

namespace zero::bench {
namespace {

using Json = nlohmann::ordered_json;
using base::Align;
using base::Column;
using base::fixed;
using base::Table;

std::vector<std::string> split(const std::string& name) {
  std::vector<std::string> parts(1);
  for (const char c : name) {
    if (c == '/') {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

double seconds_in(const std::string& unit) {
  static const std::map<std::string, double> units = {
      {"s", 1}, {"ms", 1e-3}, {"us", 1e-6}, {"ns", 1e-9}};
  return units.at(unit);
}

// What Google Benchmark adds to every result and says nothing here.
const std::set<std::string> kGooglesOwn = {"family_index",     "per_family_instance_index",
                                           "repetition_index", "repetitions",
                                           "threads",          "iterations",
                                           "real_time",        "cpu_time"};

Result from_google(const std::string& program, const Json& json) {
  Result result{program, split(json.at("name").get<std::string>()), "", {}};
  // "zero1/tiny/ranks:2/iterations:1/manual_time": how it was run, not what.
  while (result.parts.size() > 1 && (result.parts.back() == "manual_time" ||
                                     result.parts.back().rfind("iterations:", 0) == 0)) {
    result.parts.pop_back();
  }
  if (json.value("error_occurred", false)) {
    result.error = json.value("error_message", "");
    return result;
  }
  for (const auto& [key, value] : json.items()) {
    if (value.is_number() && kGooglesOwn.count(key) == 0) result.numbers[key] = value;
  }
  result.numbers["seconds"] = json.at("real_time").get<double>() * seconds_in(json.at("time_unit"));
  return result;
}

Result from_ours(const Json& json) {
  Result result{json.at("program"), split(json.at("name")), json.value("error", ""), {}};
  for (const auto& [key, value] : json.items()) {
    if (value.is_number()) result.numbers[key] = value;
  }
  return result;
}

// "-" for what is not there.
std::string number(const Result& result, const std::string& key, int decimals, double scale = 1) {
  return result.has(key) ? fixed(scale * result.numbers.at(key), decimals) : "-";
}

// Three digits that mean something, without a power of ten.
std::string milliseconds(double seconds) {
  const double ms = 1e3 * seconds;
  return fixed(ms, ms < 0.1 ? 4 : ms < 1 ? 3 : ms < 10 ? 2 : ms < 100 ? 1 : 0);
}

std::string after_colon(const std::string& part) { return part.substr(part.find(':') + 1); }

Table modes_table(const std::vector<Result>& results) {
  std::vector<Column> columns = {{"mode", Align::kLeft}, {"model", Align::kLeft}, {"ranks"}};
  for (const char* name : {"param", "grad", "optim", "total"}) {
    columns.push_back({name, Align::kRight, "MiB", "held"});
  }
  columns.push_back({"ratio"});
  columns.push_back({"formula"});
  columns.push_back({"peak", Align::kRight, "MiB"});
  columns.push_back({"sent", Align::kRight, "V"});
  for (const char* name : {"step", "forward", "backward", "comm", "optim"}) {
    columns.push_back({name, Align::kRight, "ms", "time"});
  }
  Table table(columns);
  for (const Result& r : results) {
    std::vector<std::string> cells = {r.parts.at(0), r.parts.at(1), after_colon(r.parts.at(2))};
    for (const char* key : {"parameters_mib", "gradients_mib", "optimizer_mib", "total_mib"}) {
      cells.push_back(number(r, key, 2));
    }
    cells.push_back(number(r, "ratio", 4));
    cells.push_back(number(r, "formula", 4));
    cells.push_back(number(r, "peak_mib", 2));
    cells.push_back(number(r, "sent_v", 3));
    for (const char* key :
         {"seconds", "forward_s", "backward_s", "communication_s", "optimizer_s"}) {
      cells.push_back(r.has(key) ? milliseconds(r.numbers.at(key)) : "-");
    }
    table.add_row(cells);
  }
  return table;
}

// A row for each operation, number of ranks and size, with every way beside the others.
Table collectives_table(const std::vector<Result>& results) {
  static const std::vector<std::string> ways = {"host", "tcp", "gloo", "other"};
  std::vector<Column> columns = {
      {"operation", Align::kLeft}, {"ranks"}, {"size", Align::kRight, "KiB"}};
  for (const std::string& way : ways) {
    columns.push_back({"time", Align::kRight, "ms", way});
    columns.push_back({"algbw", Align::kRight, "GB/s", way});
    columns.push_back({"busbw", Align::kRight, "GB/s", way});
  }
  using Key = std::tuple<std::string, int, int>;
  std::vector<Key> order;
  std::map<Key, std::map<std::string, const Result*>> rows;
  for (const Result& r : results) {
    const Key key{r.parts.at(0), std::stoi(after_colon(r.parts.at(2))), std::stoi(r.parts.at(1))};
    if (rows.count(key) == 0) order.push_back(key);
    rows[key][r.parts.at(3)] = &r;
  }
  std::stable_sort(order.begin(), order.end(), [](const Key& a, const Key& b) {
    return std::tie(std::get<0>(a), std::get<1>(a)) < std::tie(std::get<0>(b), std::get<1>(b));
  });
  Table table(columns);
  for (const Key& key : order) {
    const auto& [operation, ranks, kib] = key;
    std::vector<std::string> cells = {operation, std::to_string(ranks), std::to_string(kib)};
    for (const std::string& way : ways) {
      const auto found = rows[key].find(way);
      if (found == rows[key].end() || !found->second->has("seconds")) {
        cells.insert(cells.end(), 3, "-");
        continue;
      }
      cells.push_back(milliseconds(found->second->numbers.at("seconds")));
      cells.push_back(number(*found->second, "algbw_gb_per_s", 2));
      cells.push_back(number(*found->second, "busbw_gb_per_s", 2));
    }
    table.add_row(cells);
  }
  return table;
}

Table others_table(const std::vector<Result>& results) {
  Table table({{"benchmark", Align::kLeft},
               {"time", Align::kRight, "ms"},
               {"best", Align::kRight, "ms"},
               {"memory", Align::kRight, "GB/s"}});
  for (const Result& r : results) {
    table.add_row({r.name(), milliseconds(r.numbers.at("seconds")), number(r, "best_s", 2, 1e3),
                   number(r, "gb_per_s", 1)});
  }
  return table;
}

}  // namespace

std::string Result::name() const { return fmt::format("{}", fmt::join(parts, "/")); }

std::vector<Result> read_results(const std::filesystem::path& file) {
  std::error_code missing;
  if (std::filesystem::file_size(file, missing) == 0 || missing) return {};
  const Json json = base::read_json(file);
  std::vector<Result> results;
  try {
    const bool googles = json.contains("context");
    for (const Json& entry : json.at("benchmarks")) {
      results.push_back(googles ? from_google(file.stem().string(), entry) : from_ours(entry));
    }
  } catch (const std::exception& error) {
    throw Error(fmt::format("{} holds no results of benchmarks: {}", file.string(), error.what()));
  }
  return results;
}

void write_results(const std::filesystem::path& file, Json metadata,
                   const std::vector<Result>& results) {
  Json list = Json::array();
  for (const Result& result : results) {
    Json entry = {{"program", result.program}, {"name", result.name()}};
    if (!result.error.empty()) entry["error"] = result.error;
    for (const auto& [key, value] : result.numbers) entry[key] = value;
    list.push_back(entry);
  }
  metadata["benchmarks"] = list;
  base::write_json(file, metadata);
}

std::vector<Section> tables(const std::vector<Result>& results) {
  std::vector<Result> modes;
  std::vector<Result> collectives;
  std::vector<Result> others;
  for (const Result& result : results) {
    if (!result.error.empty()) continue;
    (result.has("ratio")            ? modes
     : result.has("busbw_gb_per_s") ? collectives
                                    : others)
        .push_back(result);
  }
  std::vector<Section> sections;
  if (!modes.empty()) {
    sections.push_back(
        {"What a rank holds at rest, sends and takes for a step", modes_table(modes)});
  }
  if (!collectives.empty()) {
    sections.push_back({"Collectives, the slowest rank's time", collectives_table(collectives)});
  }
  if (!others.empty()) sections.push_back({"On one thread", others_table(others)});
  return sections;
}

}  // namespace zero::bench
