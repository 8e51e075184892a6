// The benchmarks of a chapter: for each of its modes what a rank holds and sends, and what a step
// takes. register_chapter.cpp says which chapter.
//   ./run bench zero1 --help

#include <fmt/format.h>

#include <cmath>

#include <tests/support/deferred.hpp>
#include <tools/ladder/data/dataset.hpp>
#include <tools/ladder/data/sampler.hpp>
#include <tools/ladder/data/text.hpp>
#include <tools/ladder/registry.hpp>
#include <tools/ladder/trainer.hpp>
#include <tools/models/presets.hpp>
#include <zero/base/error.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/nn/llama.hpp>
#include <zero/optim/adamw.hpp>

#include "bench.hpp"

namespace zero {
void register_chapter(tools::Registry& registry);
}

namespace zero::bench {
namespace {

using memory::Category;

struct Settings {
  std::string model = "tiny";
  std::int64_t layers = 0;  // 0: as many as the model has
  std::int64_t sequence_length = 64;
  int world_size = 2;
  int steps = 12;
};

// One rank: trains, then says what it held at rest, what its last step sent, and its times.
Json train_and_look(dist::Communicator& communicator, const std::string& mode,
                    const Settings& settings) {
  data::LanguageModelDataset dataset(data::project_text("."), settings.sequence_length);
  data::DistributedSampler sampler(dataset.size(), communicator.size(), communicator.rank(),
                                   communicator.size(), /*seed=*/1);
  nn::LlamaConfig config = tools::preset(settings.model);
  if (settings.layers > 0) config.layers = settings.layers;
  const auto model = testing::make_deferred<nn::Llama>(config);
  nn::SeededValues values(/*seed=*/1);
  tools::Registry registry;
  register_chapter(registry);
  const auto strategy = registry.make(mode, {*model, communicator, optim::adamw(), &values, ""});
  tools::Trainer trainer(*strategy, tools::losses_of(*model));
  std::map<std::string, std::vector<double>> seconds;
  dist::Traffic before;
  std::int64_t to_send = 0;
  for (int s = 0; s < settings.steps; ++s) {
    before = communicator.traffic();
    to_send = strategy->costs().sent;
    memory::reset_peaks();
    const tools::PhaseSeconds step = trainer.step({dataset.batch(sampler.next())}).seconds;
    if (s == 0) continue;  // makes the moments and warms everything up
    seconds["step"].push_back(step.total);
    seconds["forward_s"].push_back(step.forward);
    seconds["backward_s"].push_back(step.backward);
    seconds["communication_s"].push_back(step.communication);
    seconds["optimizer_s"].push_back(step.optimizer);
  }
  const dist::Traffic traffic = communicator.traffic().since(before);
  const std::int64_t sent =
      traffic.bytes(dist::Purpose::kGradient) + traffic.bytes(dist::Purpose::kParameter);
  if (sent != to_send) {
    throw Error(fmt::format("rank {} sent {} bytes in its last step; the formula says {}",
                            communicator.rank(), sent, to_send));
  }
  const memory::Snapshot held = memory::snapshot();
  constexpr double kMiB = 1 << 20;
  const auto copy = static_cast<double>(strategy->list().bytes());
  const auto total = static_cast<double>(held.model_states());
  const double ddp = 4 * copy;  // parameters, gradients and AdamW's two moments
  return {{"seconds", seconds},
          {"counters",
           {{"parameters_mib", static_cast<double>(held[Category::kParameters]) / kMiB},
            {"gradients_mib", static_cast<double>(held[Category::kGradients]) / kMiB},
            {"optimizer_mib", static_cast<double>(held[Category::kOptimizer]) / kMiB},
            {"peak_mib", static_cast<double>(held.total_peak) / kMiB},
            {"ratio", total / ddp},
            {"formula", static_cast<double>(strategy->costs().at_rest.total()) / ddp},
            {"sent_v", static_cast<double>(sent) / copy}}}};
}

// What a stage holds at two ranks, of what plain DDP holds with AdamW; 0 for other modes.
double published_ratio(const std::string& mode) {
  const std::string name = mode.substr(0, mode.find(':'));
  if (name == "ddp" || name == "engine0") return 1;
  for (const auto& [stage, ratio] : {std::pair{'1', 0.75}, {'2', 0.625}, {'3', 0.5}}) {
    if (name.back() == stage) return ratio;
  }
  return 0;
}

// Little is not exact: padding, more in a small model than in a large one.
void check(const std::string& mode, const Settings& settings,
           const std::map<std::string, double>& counters) {
  const double ratio = counters.at("ratio"), formula = counters.at("formula");
  if (std::abs(ratio / formula - 1) > 1e-3) {
    throw Error(fmt::format("holds {:.5f} of plain DDP's model states; its formula says {:.5f}",
                            ratio, formula));
  }
  const double published = published_ratio(mode);
  if (settings.world_size == 2 && published > 0 && std::abs(ratio - published) > 0.005) {
    throw Error(fmt::format("holds {:.4f} of plain DDP's model states at two ranks, not {}", ratio,
                            published));
  }
}

Measured measure(const std::string& mode, const Settings& settings) {
  dist::LaunchOptions launch;
  launch.world_size = settings.world_size;
  std::vector<Json> times;
  Measured measured;
  for (const Json& rank :
       on_ranks(launch, [&](dist::Communicator& c) { return train_and_look(c, mode, settings); })) {
    times.push_back(rank.at("seconds"));
    for (const auto& [key, value] : rank.at("counters").items()) {
      measured.counters[key] += value.get<double>() / settings.world_size;
    }
  }
  measured.seconds = slowest(times, "step");
  for (const char* phase : {"forward_s", "backward_s", "communication_s", "optimizer_s"}) {
    measured.counters[phase] = median(slowest(times, phase));
  }
  check(mode, settings, measured.counters);
  return measured;
}

int run_chapter(int argc, char** argv) {
  memory::install();
  Settings settings;
  CLI::App options{"Memory, traffic and step time of a chapter's modes."};
  options.add_option("--model", settings.model, "the model's shape")
      ->capture_default_str()
      ->check(CLI::IsMember(tools::preset_names()));
  options.add_option("--layers", settings.layers, "layers; as many as the model has if not given")
      ->check(CLI::Range(1, 1000));
  number(options, "--seq-len", settings.sequence_length, "tokens of each rank's one sequence", 2,
         8192);
  number(options, "--nproc", settings.world_size, "ranks", 1, 16);
  number(options, "--steps", settings.steps, "steps, of which the first is not counted", 2, 10000);
  return run(argc, argv, options, [&] {
    tools::Registry registry;
    register_chapter(registry);
    for (const std::string& mode : registry.modes()) {
      add(fmt::format("{}/{}/ranks:{}", mode, settings.model, settings.world_size),
          [mode, settings] { return measure(mode, settings); });
    }
  });
}

}  // namespace
}  // namespace zero::bench

int main(int argc, char** argv) { return zero::bench::run_chapter(argc, argv); }
