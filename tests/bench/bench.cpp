#include "bench.hpp"

#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>
#include <zero/data/dataset.hpp>
#include <zero/data/sampler.hpp>
#include <zero/data/text.hpp>
#include <zero/distributed/launch.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/nn/llama.hpp>
#include <zero/train/trainer.hpp>

namespace zero::bench {
namespace {

using Json = nlohmann::json;
using memory::Category;

struct Settings {
  std::string model = "tiny";
  int world_size = 2;
  int steps = 8;
  void (*register_chapter)(train::Registry&) = nullptr;
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// One rank: trains, then says what it held at rest, what its last step sent, and its times.
std::string measure(dist::Communicator& communicator, const std::string& mode,
                    const Settings& settings) {
  data::LanguageModelDataset dataset(data::project_text("."), /*sequence_length=*/64);
  data::DistributedSampler sampler(dataset.size(), communicator.size(), communicator.rank(),
                                   communicator.size(), /*seed=*/1);
  std::shared_ptr<nn::Llama> model;
  {
    const nn::DeferredStorage deferred;
    model = std::make_shared<nn::Llama>(nn::preset(settings.model));
  }
  nn::SeededValues values(/*seed=*/1);
  train::Registry registry;
  settings.register_chapter(registry);
  const auto strategy = registry.make(mode, {*model, communicator, optim::adamw(), &values, ""});
  train::Trainer trainer(*strategy);
  std::vector<std::vector<double>> times(5);
  dist::Traffic before;
  for (int s = 0; s < settings.steps; ++s) {
    before = communicator.traffic();
    memory::reset_peaks();
    const train::PhaseSeconds t = trainer.step({dataset.batch(sampler.next())}).seconds;
    if (s == 0) continue;  // makes the optimizer's states and warms everything up
    const double all[] = {t.total, t.forward, t.backward, t.communication, t.optimizer};
    for (std::size_t i = 0; i < times.size(); ++i) times[i].push_back(all[i]);
  }
  const memory::Snapshot held = memory::snapshot();
  const dist::Traffic sent = communicator.traffic().since(before);
  Json json = {
      {"held", held.model_states()},
      {"parameters", held[Category::kParameters]},
      {"gradients", held[Category::kGradients]},
      {"optimizer", held[Category::kOptimizer]},
      {"peak", held.total_peak},
      {"sent", sent.bytes(dist::Purpose::kGradient) + sent.bytes(dist::Purpose::kParameter)},
      {"copy", strategy->list().bytes()}};
  const char* names[] = {"step", "forward", "backward", "waiting", "optimizer_time"};
  for (std::size_t i = 0; i < times.size(); ++i) json[names[i]] = median(times[i]);
  return json.dump();
}

void run_mode(benchmark::State& state, const std::string& mode, const Settings& settings) {
  dist::LaunchOptions launch;
  launch.world_size = settings.world_size;
  launch.threads = 1;
  launch.connect.timeout = std::chrono::minutes(2);
  const auto exits =
      dist::launch_ranks(launch, [&](dist::Communicator& c) { return measure(c, mode, settings); });
  if (const std::string failures = dist::describe_failures(exits); !failures.empty()) {
    state.SkipWithError(failures.c_str());
    return;
  }
  std::vector<Json> ranks;
  for (const dist::RankExit& exit : exits) ranks.push_back(Json::parse(exit.result));
  const auto mean = [&](const char* key) {
    double sum = 0;
    for (const Json& rank : ranks) sum += rank.at(key).get<double>();
    return sum / static_cast<double>(ranks.size());
  };
  double slowest = 0;
  for (const Json& rank : ranks) slowest = std::max(slowest, rank.at("step").get<double>());
  for (auto _ : state) state.SetIterationTime(slowest);
  constexpr double kMiB = 1 << 20;
  for (const char* key : {"parameters", "gradients", "optimizer", "peak"}) {
    state.counters[fmt::format("{}_mib", key)] = mean(key) / kMiB;
  }
  const double copy = ranks.front().at("copy").get<double>();
  state.counters["ratio"] = mean("held") / (4 * copy);  // plain DDP with AdamW holds four copies
  state.counters["sent_v"] = mean("sent") / copy;
  for (const char* key : {"forward", "backward", "waiting", "optimizer_time"}) {
    state.counters[fmt::format("{}_s", key)] = mean(key);
  }
}

}  // namespace

int run_chapter(int argc, char** argv, void (*register_chapter)(train::Registry&)) {
  memory::install();
  Settings settings;
  settings.register_chapter = register_chapter;
  benchmark::Initialize(&argc, argv);
  CLI::App app{
      "Memory, traffic and step time of a chapter's modes. Google Benchmark's own flags "
      "(--benchmark_filter=…) are understood as well."};
  app.add_option("--model", settings.model, "tiny, smollm2-135m or smollm2-360m")
      ->capture_default_str();
  app.add_option("--nproc", settings.world_size, "ranks")
      ->capture_default_str()
      ->check(CLI::Range(1, 16));
  app.add_option("--steps", settings.steps, "steps, of which the first is not counted")
      ->capture_default_str()
      ->check(CLI::Range(2, 10000));
  CLI11_PARSE(app, argc, argv);
  train::Registry registry;
  register_chapter(registry);
  for (const std::string& mode : registry.modes()) {
    benchmark::RegisterBenchmark(
        fmt::format("{}/{}/ranks:{}", mode, settings.model, settings.world_size).c_str(),
        [mode, settings](benchmark::State& state) { run_mode(state, mode, settings); })
        ->Iterations(1)
        ->UseManualTime()
        ->Unit(benchmark::kMillisecond);
  }
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}

}  // namespace zero::bench
