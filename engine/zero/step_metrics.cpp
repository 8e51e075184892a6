#include <utility>

#include <zero/distributed/agreement.hpp>
#include <zero/step_metrics.hpp>

namespace zero {

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

}  // namespace zero
