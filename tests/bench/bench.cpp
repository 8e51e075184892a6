#include "bench.hpp"

#include <fmt/format.h>

#include <cmath>

#include <zero/base/error.hpp>
#include <zero/data/dataset.hpp>
#include <zero/data/sampler.hpp>
#include <zero/data/text.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/nn/llama.hpp>
#include <zero/optim/adamw.hpp>
#include <zero/train/registry.hpp>
#include <zero/train/trainer.hpp>

#include "program.hpp"

namespace zero::bench {
namespace {

using memory::Category;

constexpr double kMiB = 1 << 20;
constexpr double kTolerance = 1e-3;  // of what is held against the formula, as in the ladder

struct Settings {
  std::string model = "tiny";
  std::int64_t layers = 0;  // 0: as many as the model has
  std::int64_t sequence_length = 64;
  int world_size = 2;
  int steps = 12;
  void (*register_chapter)(train::Registry&) = nullptr;
};

nn::LlamaConfig config_of(const Settings& settings) {
  nn::LlamaConfig config = nn::preset(settings.model);
  if (settings.layers > 0) config.layers = settings.layers;
  return config;
}

// Seconds of every counted step by phase.
struct Phases {
  std::vector<double> step, forward, backward, communication, optimizer;

  void add(const train::PhaseSeconds& seconds) {
    step.push_back(seconds.total);
    forward.push_back(seconds.forward);
    backward.push_back(seconds.backward);
    communication.push_back(seconds.communication);
    optimizer.push_back(seconds.optimizer);
  }
};

Json as_json(const train::Strategy& strategy, const memory::Snapshot& held,
             const dist::Traffic& sent, const Phases& phases) {
  return {{"copy", strategy.list().bytes()},
          {"formula", strategy.predicted_bytes().total()},
          {"parameters", held[Category::kParameters]},
          {"gradients", held[Category::kGradients]},
          {"optimizer", held[Category::kOptimizer]},
          {"total", held.model_states()},
          {"peak", held.total_peak},
          {"sent", sent.bytes(dist::Purpose::kGradient) + sent.bytes(dist::Purpose::kParameter)},
          {"step", phases.step},
          {"forward", median(phases.forward)},
          {"backward", median(phases.backward)},
          {"communication", median(phases.communication)},
          {"optimizer_seconds", median(phases.optimizer)}};
}

// One rank: trains, then says what it held at rest, what its last step sent, and its times.
Json train_and_look(dist::Communicator& communicator, const std::string& mode,
                    const Settings& settings) {
  data::LanguageModelDataset dataset(data::project_text("."), settings.sequence_length);
  data::DistributedSampler sampler(dataset.size(), communicator.size(), communicator.rank(),
                                   communicator.size(), /*seed=*/1);
  std::shared_ptr<nn::Llama> model;
  {
    const nn::DeferredStorage deferred;
    model = std::make_shared<nn::Llama>(config_of(settings));
  }
  nn::SeededValues values(/*seed=*/1);
  train::Registry registry;
  settings.register_chapter(registry);
  const auto strategy = registry.make(mode, {*model, communicator, optim::adamw(), &values, ""});
  train::Trainer trainer(*strategy);
  Phases phases;
  dist::Traffic before;
  for (int s = 0; s < settings.steps; ++s) {
    before = communicator.traffic();
    memory::reset_peaks();
    const train::StepResult result = trainer.step({dataset.batch(sampler.next())});
    if (s > 0) phases.add(result.seconds);  // the first makes the moments and warms everything up
  }
  return as_json(*strategy, memory::snapshot(), communicator.traffic().since(before), phases);
}

Measured measure(const std::string& mode, const Settings& settings) {
  dist::LaunchOptions launch;
  launch.world_size = settings.world_size;
  launch.connect.timeout = std::chrono::minutes(2);
  const std::vector<Json> ranks =
      on_ranks(launch, [&](dist::Communicator& c) { return train_and_look(c, mode, settings); });
  const double copy = mean(ranks, "copy");
  const double ddp = 4 * copy;  // parameters, gradients and AdamW's two moments
  Measured measured{slowest(ranks, "step")};
  auto& counters = measured.counters;
  for (const char* key : {"parameters", "gradients", "optimizer", "total", "peak"}) {
    counters[fmt::format("{}_mib", key)] = mean(ranks, key) / kMiB;
  }
  counters["total_max_mib"] = largest(ranks, "total") / kMiB;
  counters["ratio"] = mean(ranks, "total") / ddp;
  counters["formula"] = mean(ranks, "formula") / ddp;
  counters["sent_v"] = mean(ranks, "sent") / copy;
  counters["parameters"] = static_cast<double>(config_of(settings).parameters());
  for (const char* key : {"forward", "backward", "communication"}) {
    counters[fmt::format("{}_s", key)] = mean(ranks, key);
  }
  counters["optimizer_s"] = mean(ranks, "optimizer_seconds");
  if (std::abs(counters["ratio"] / counters["formula"] - 1) > kTolerance) {
    throw Error(fmt::format("holds {:.5f} of plain DDP's model states; its formula says {:.5f}",
                            counters["ratio"], counters["formula"]));
  }
  return measured;
}

}  // namespace

int run_chapter(int argc, char** argv, void (*register_chapter)(train::Registry&)) {
  memory::install();
  Settings settings;
  settings.register_chapter = register_chapter;
  Program program(argc, argv, "Memory, traffic and step time of a chapter's modes.");
  CLI::App& options = program.options();
  options.add_option("--model", settings.model, "the model's shape")
      ->capture_default_str()
      ->check(CLI::IsMember(nn::preset_names()));
  options.add_option("--layers", settings.layers, "layers; as many as the model has if not given")
      ->check(CLI::Range(1, 1000));
  options.add_option("--seq-len", settings.sequence_length, "tokens of each rank's one sequence")
      ->capture_default_str()
      ->check(CLI::Range(2, 8192));
  options.add_option("--nproc", settings.world_size, "ranks")
      ->capture_default_str()
      ->check(CLI::Range(1, 16));
  options.add_option("--steps", settings.steps, "steps, of which the first is not counted")
      ->capture_default_str()
      ->check(CLI::Range(2, 10000));
  if (const auto code = program.parse()) return *code;
  std::string model = settings.model;
  if (settings.layers > 0) model += fmt::format(":{}-layers", settings.layers);
  train::Registry registry;
  register_chapter(registry);
  for (const std::string& mode : registry.modes()) {
    program.add(fmt::format("{}/{}/ranks:{}", mode, model, settings.world_size),
                [mode, settings] { return measure(mode, settings); });
  }
  return program.run();
}

}  // namespace zero::bench
