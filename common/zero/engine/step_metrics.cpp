#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>
#include <utility>

#include <zero/base/error.hpp>
#include <zero/base/json.hpp>
#include <zero/distributed/agreement.hpp>
#include <zero/engine/step_metrics.hpp>

namespace zero {
namespace {

base::Json to_json(const StepMetrics& m) {
  base::Json json = {{"step", m.step},
                     {"updated", m.updated},
                     {"loss", m.loss},
                     {"gradient_norm", m.gradient_norm}};
  for (std::size_t g = 0; g < m.learning_rates.size(); ++g) {
    json[g == 0 ? "learning_rate" : fmt::format("learning_rate_{}", g)] = m.learning_rates[g];
  }
  json["loss_terms_per_second"] = m.loss_terms_per_second();
  json["seconds"] = m.seconds;
  json["exposed_seconds"] = m.exposed_seconds;
  json["percent_of_compute_alone"] = m.percent_of_compute_alone();
  return json;
}

}  // namespace

std::vector<double> learning_rates(const optim::Optimizer& optimizer) {
  std::vector<double> rates;
  for (const auto& group : optimizer.settings().groups) {
    const auto rate = group.find("learning_rate");
    if (rate != group.end()) rates.push_back(rate->second);
  }
  return rates;
}

StepMeter::StepMeter(train::Strategy& strategy, StepCallback callback)
    : strategy_(strategy),
      callback_(std::move(callback)),
      last_(std::chrono::steady_clock::now()),
      exposed_before_(strategy.mesh().world().times().exposed_seconds()) {}

void StepMeter::measure(StepMetrics& metrics) {
  metrics.learning_rates = learning_rates(strategy_.optimizer());
  const auto now = std::chrono::steady_clock::now();
  const double exposed = strategy_.mesh().world().times().exposed_seconds();
  metrics.seconds = std::chrono::duration<double>(now - std::exchange(last_, now)).count();
  metrics.exposed_seconds = exposed - std::exchange(exposed_before_, exposed);
}

void StepMeter::report(const StepMetrics& metrics) {
  dist::run_on_all_ranks(strategy_.mesh().world(), "the callback of a step",
                         [&] { callback_(metrics); });
}

MetricsWriter::MetricsWriter(dist::Communicator& communicator, const std::filesystem::path& path)
    : path_(path), writes_(communicator.rank() == 0) {
  const dist::CallScope call(communicator, "MetricsWriter::MetricsWriter");
  dist::run_on_all_ranks(communicator, "the metrics", [&] {
    if (path.extension() != ".jsonl" && path.extension() != ".csv") {
      throw Error(fmt::format("'{}' must end in .jsonl or .csv", path.string()));
    }
    if (!writes_) return;
    file_.open(path, std::ios::app | std::ios::ate);
    if (!file_) throw Error(fmt::format("cannot write to '{}'", path.string()));
  });
}

void MetricsWriter::write(const StepMetrics& metrics) {
  if (!writes_) return;
  const base::Json json = to_json(metrics);
  if (path_.extension() == ".csv") {
    std::vector<std::string> names, cells;
    for (const auto& [name, value] : json.items()) {
      names.push_back(name);
      cells.push_back(value.dump());
    }
    if (file_.tellp() == 0) file_ << fmt::format("{}\n", fmt::join(names, ","));
    file_ << fmt::format("{}\n", fmt::join(cells, ","));
  } else {
    file_ << json.dump() << "\n";
  }
  if (!file_.flush()) throw Error(fmt::format("cannot write to '{}'", path_.string()));
}

}  // namespace zero
