#include "demo.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include <tools/plots/memory_timeline.hpp>
#include <zero/base/arguments.hpp>
#include <zero/base/error.hpp>
#include <zero/base/names.hpp>
#include <zero/base/program.hpp>
#include <zero/data/dataset.hpp>
#include <zero/data/sampler.hpp>
#include <zero/distributed/launch.hpp>
#include <zero/distributed/validate_world_size.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/memory/timeline.hpp>
#include <zero/nn/mlp.hpp>
#include <zero/optim/adamw.hpp>
#include <zero/train/trainer.hpp>

#include "narrate.hpp"

namespace zero::step {
namespace {

using memory::Category;

struct DemoModel {
  std::string name;
  nn::MlpConfig config;
  std::int64_t batch;  // samples a rank
};

// "mlp" is trained in a second. "wide" has few and large units, six layers of 4 MiB, so that a
// memory timeline shows each of them come and go; its batch makes activations large enough to be
// seen as well.
const std::vector<DemoModel>& models() {
  static const std::vector<DemoModel> all = {
      {"mlp", {.inputs = 64, .hidden = {256, 256}, .outputs = 8}, 32},
      {"wide", {.inputs = 64, .hidden = std::vector<std::int64_t>(7, 1024), .outputs = 8}, 256},
  };
  return all;
}

struct DemoOptions {
  std::string mode;
  std::string model = "mlp";
  int world_size = 2;
  bool ranks_were_asked = false;  // --nproc was there
  std::int64_t steps = 20;
  double timeout_seconds = 60;
  bool narrate = false;
  std::int64_t narrated_width = 2;
  std::string memory_timeline;  // file for rank 0's memory along the last step; empty: none
  base::Json run;               // what the memory timeline says about how it was made
  void (*register_chapter)(train::Registry&) = nullptr;

  DemoModel chosen() const {
    const std::int64_t w = narrated_width;
    if (narrate) return {"narrated", {.inputs = w, .hidden = {w}, .outputs = w}, 32};
    for (const DemoModel& known : models()) {
      if (known.name == model) return known;
    }
    std::vector<std::string> names;
    for (const DemoModel& known : models()) names.push_back(known.name);
    throw Error(base::unknown_name_message("model", model, names));
  }
};

std::string row_of(const train::Strategy& strategy, const memory::Snapshot& held,
                   const dist::Traffic& sent, const train::PhaseSeconds& seconds) {
  const auto kib = [](std::int64_t bytes) { return static_cast<double>(bytes) / 1024.0; };
  const train::ModelStateBytes formula = strategy.predicted_bytes();
  return fmt::format(
      "held {:8.1f} + {:8.1f} + {:8.1f} = {:8.1f} KiB (formula {:8.1f}), sent {:8.1f} KiB (formula "
      "{:8.1f}), {:.2f} ms a step",
      kib(held[Category::kParameters]), kib(held[Category::kGradients]),
      kib(held[Category::kOptimizer]), kib(held.model_states()), kib(formula.total()),
      kib(sent.bytes(dist::Purpose::kGradient) + sent.bytes(dist::Purpose::kParameter)),
      kib(strategy.predicted_traffic()), seconds.total * 1e3);
}

void write_memory_timeline(train::Strategy& strategy, const DemoOptions& options,
                           const memory::Timeline& timeline) {
  const plots::TimelineSubject subject{options.model, strategy.communicator().size(),
                                       strategy.list().bytes()};
  base::Json modes = base::Json::array({plots::timeline_of_mode(options.mode, timeline)});
  base::write_json(options.memory_timeline,
                   plots::memory_timeline(subject, std::move(modes), options.run));
}

void train(train::Strategy& strategy, const data::Dataset& dataset,
           data::DistributedSampler& sampler, const DemoOptions& options) {
  dist::Communicator& communicator = strategy.communicator();
  train::Trainer trainer(strategy);
  train::StepResult result;
  dist::Traffic before;
  memory::Timeline timeline;
  const bool memory_timelines = !options.memory_timeline.empty() && communicator.rank() == 0;
  for (std::int64_t s = 0; s < options.steps; ++s) {
    const data::Batch batch = dataset.batch(sampler.next());
    const bool last = s + 1 == options.steps;
    // A memory timeline is to show a step, and not how long rank 0 waited for the others to begin
    // it.
    if (last) communicator.barrier();
    before = communicator.traffic();
    if (memory_timelines && last) memory::start_timeline(strategy.list().bytes() / 4096);
    result = trainer.step({batch});
    if (memory_timelines && last) timeline = memory::stop_timeline();
    if (communicator.rank() == 0 && (s == 0 || (s + 1) % 5 == 0)) {
      fmt::print("step {:3}  loss {:.6f}\n", s + 1, result.loss);
    }
  }
  const memory::Snapshot held = memory::snapshot();
  const dist::Traffic sent = communicator.traffic().since(before);
  print_by_rank(communicator, fmt::format("{}, parameters + gradients + optimizer:", options.mode),
                row_of(strategy, held, sent, result.seconds));
  if (memory_timelines) write_memory_timeline(strategy, options, timeline);
}

std::string run_rank(dist::Communicator& communicator, const DemoOptions& options) {
  const DemoModel chosen = options.chosen();
  communicator.verify_same_on_all_ranks(
      "the run",
      fmt::format("mode {}\nmodel {}\n{} steps\n{}", options.mode, chosen.name, options.steps,
                  options.memory_timeline.empty() ? "no memory timeline" : "a memory timeline"));
  const nn::MlpConfig& config = chosen.config;
  const auto dataset = data::toy_regression(/*seed=*/1, /*n=*/4096, config.inputs, config.outputs);
  data::DistributedSampler sampler(dataset.size(), chosen.batch * communicator.size(),
                                   communicator.rank(), communicator.size(), /*seed=*/1);
  std::shared_ptr<nn::Mlp> model;
  {
    const nn::DeferredStorage deferred;
    model = std::make_shared<nn::Mlp>(config);
  }
  nn::SeededValues values(/*seed=*/7);
  train::Registry registry;
  options.register_chapter(registry);
  const auto strategy =
      registry.make(options.mode, {*model, communicator, optim::adamw(), &values, /*variant=*/""});
  if (options.narrate) {
    const std::int64_t weight = options.narrated_width * options.narrated_width;
    narrate(*strategy, dataset.batch(sampler.next()), /*a_letter=*/weight / 4);
  } else {
    train(*strategy, dataset, sampler, options);
  }
  return "";
}

int launch(const DemoOptions& options) {
  dist::ConnectOptions connect;
  connect.timeout =
      std::chrono::milliseconds(static_cast<std::int64_t>(options.timeout_seconds * 1000));
  const auto environment = dist::rank_environment();
  if (options.ranks_were_asked) dist::validate_world_size(options.world_size);
  const bool writes = !options.memory_timeline.empty() && (!environment || environment->rank == 0);
  if (writes) base::check_writable(options.memory_timeline);
  options.chosen();
  if (environment) {
    run_rank(*dist::connect(*environment, connect), options);
  } else {
    dist::LaunchOptions launch;
    launch.world_size = options.world_size;
    launch.connect = connect;
    const auto exits = dist::launch_ranks(
        launch, [&](dist::Communicator& communicator) { return run_rank(communicator, options); });
    dist::check_all_well(exits);
  }
  if (writes) fmt::print("memory timeline: {}\n", options.memory_timeline);
  return 0;
}

// Says what was not said: a memory timeline is of the wide model and of the third step, when the
// moments are there and everything is warm; a narration has three ranks.
void fill_in(const CLI::App& app, DemoOptions& options) {
  const auto given = [&](const char* name) { return app.count(name) > 0; };
  options.ranks_were_asked = given("--nproc");
  if (options.narrate && !options.ranks_were_asked) options.world_size = 3;
  if (options.memory_timeline.empty()) return;
  if (!given("--model")) options.model = "wide";
  if (!given("--steps")) options.steps = 3;
}

}  // namespace

int run_demo(int argc, char** argv, const std::string& mode,
             void (*register_chapter)(train::Registry&), std::int64_t narrated_width) {
  DemoOptions options;
  options.mode = mode;
  options.register_chapter = register_chapter;
  options.narrated_width = narrated_width;
  CLI::App app{"Trains a small MLP under " + mode + " and prints what each rank held and sent."};
  app.add_option("--mode", options.mode, "a variant, for example " + mode + ":…")
      ->capture_default_str();
  app.add_option("--model", options.model,
                 "mlp, or wide: few large layers, for a memory timeline (then the default)")
      ->capture_default_str();
  app.add_option("--nproc", options.world_size, "ranks (without a launcher)")
      ->capture_default_str()
      ->check(CLI::Range(1, 64));
  app.add_option("--steps", options.steps, "steps (a memory timeline: 3)")
      ->capture_default_str()
      ->check(CLI::Range(1, 100000));
  app.add_option("--timeout", options.timeout_seconds, "longest wait for another rank, in seconds")
      ->capture_default_str()
      ->check(CLI::Range(0.1, 86400.0))
      ->check(base::refuse_nan);
  auto* memory_timeline =
      app.add_option("--memory-timeline", options.memory_timeline,
                     "memory timeline: what rank 0's allocator held along the last step, as "
                     "JSON; ./run draws it beside the file");
  app.add_flag("--narrate", options.narrate,
               "3 ranks, a model of a few letters: who holds what, when")
      ->excludes(memory_timeline);
  CLI11_PARSE(app, argc, argv);
  fill_in(app, options);
  options.run = base::run_metadata(argc, argv);
  return run_program(options.mode, [&] {
    base::check_arguments(argc, argv);
    memory::install();
    return launch(options);
  });
}

}  // namespace zero::step
