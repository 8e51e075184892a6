#include "demo.hpp"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include <tools/ladder/data/sampler.hpp>
#include <tools/ladder/registry.hpp>
#include <tools/ladder/trainer.hpp>
#include <tools/models/mlp.hpp>
#include <tools/plots/memory_timeline.hpp>
#include <tools/support/json.hpp>
#include <zero/base/atomic_file.hpp>
#include <zero/base/program.hpp>
#include <zero/distributed/launch.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/nn/defer.hpp>
#include <zero/optim/adamw.hpp>

#include "narrate.hpp"

namespace zero::step {
namespace {

using memory::Category;

struct DemoOptions {
  std::string mode;
  int world_size = 2;
  bool narrate = false;
  std::int64_t narrated_width = 2;
  std::string memory_timeline;  // file for rank 0's memory along the last step; empty: none
  tools::Json run;              // what the memory timeline says about how it was made
  void (*register_chapter)(tools::Registry&) = nullptr;
};

struct DemoModel {
  std::string name;
  tools::MlpConfig config;
  std::int64_t batch;  // samples a rank
  std::int64_t steps;
};

// "mlp" is trained in a second. "wide" has few and large units, six layers of 4 MiB, so that a
// memory timeline shows each of them come and go; its batch makes activations large enough to be
// seen as well. In its third step the moments are there and everything is warm.
DemoModel model_of(const DemoOptions& options) {
  const std::int64_t w = options.narrated_width;
  if (options.narrate) return {"narrated", {.inputs = w, .hidden = {w}, .outputs = w}, 32, 2};
  if (options.memory_timeline.empty()) {
    return {"mlp", {.inputs = 64, .hidden = {256, 256}, .outputs = 8}, 32, 20};
  }
  const std::vector<std::int64_t> layers(7, 1024);
  return {"wide", {.inputs = 64, .hidden = layers, .outputs = 8}, 256, 3};
}

std::string row_of(const train::Strategy& strategy, const memory::Snapshot& held,
                   const dist::Traffic& sent, const tools::PhaseSeconds& seconds) {
  const auto kib = [](std::int64_t bytes) { return static_cast<double>(bytes) / 1024.0; };
  const train::ModelStateBytes formula = strategy.costs().at_rest;
  return fmt::format(
      "held {:8.1f} + {:8.1f} + {:8.1f} = {:8.1f} KiB (formula {:8.1f}), sent {:8.1f} KiB (formula "
      "{:8.1f}), {:.2f} ms a step",
      kib(held[Category::kParameters]), kib(held[Category::kGradients]),
      kib(held[Category::kOptimizer]), kib(held.model_states()), kib(formula.total()),
      kib(sent.bytes(dist::Purpose::kGradient) + sent.bytes(dist::Purpose::kParameter)),
      kib(strategy.costs().sent), seconds.total * 1e3);
}

// For plot_memory_timeline.py. Times are seconds since the step began, all else is bytes; a sample
// holds until the next one, and a category that holds nothing is left out. A mark begins a phase.
void write_memory_timeline(train::Strategy& strategy, const DemoOptions& options,
                           const plots::Timeline& timeline) {
  tools::Json samples = tools::Json::array(), marks = samples;
  for (const plots::Timeline::Sample& sample : timeline.samples) {
    samples.push_back({{"t", sample.seconds}, {"total", sample.total}});
    for (std::size_t c = 0; c < memory::kCategories; ++c) {
      if (sample.current[c] == 0) continue;
      samples.back()[std::string(memory::name(static_cast<Category>(c)))] = sample.current[c];
    }
  }
  for (const plots::Timeline::Mark& mark : timeline.marks) {
    marks.push_back({{"t", mark.seconds}, {"label", mark.label}});
  }
  const tools::Json mode = {{"mode", options.mode}, {"samples", samples}, {"marks", marks}};
  tools::write_json(options.memory_timeline, {{"model", model_of(options).name},
                                              {"world_size", strategy.communicator().size()},
                                              {"modes", tools::Json::array({mode})},
                                              {"run", options.run}});
}

// What no linear model learns, the same on all ranks.
class Regression {
 public:
  explicit Regression(const tools::MlpConfig& config) {
    at::manual_seed(1);
    const auto draw = [](std::int64_t rows, std::int64_t columns) {
      return at::rand({rows, columns}) * 2 - 1;
    };
    inputs_ = draw(kRows, config.inputs);
    targets_ = at::matmul(inputs_, draw(config.inputs, config.outputs)) +
               at::matmul(inputs_.abs(), draw(config.inputs, config.outputs));
    targets_ /= std::sqrt(static_cast<double>(config.inputs));
  }

  data::Batch batch(const std::vector<std::int64_t>& indices) const {
    const at::Tensor rows = at::tensor(indices, at::kLong);
    data::Batch made;
    made.inputs = inputs_.index_select(/*dim=*/0, rows);
    made.targets = targets_.index_select(/*dim=*/0, rows);
    made.loss_terms = made.targets.numel();
    return made;
  }

  static constexpr std::int64_t kRows = 4096;

 private:
  at::Tensor inputs_, targets_;
};

void train(train::Strategy& strategy, const tools::Loss& loss, const Regression& dataset,
           data::DistributedSampler& sampler, const DemoOptions& options) {
  dist::Communicator& communicator = strategy.communicator();
  tools::Trainer trainer(strategy, loss);
  tools::StepResult result;
  dist::Traffic before;
  plots::Timeline timeline;
  const bool memory_timelines = !options.memory_timeline.empty() && communicator.rank() == 0;
  const std::int64_t steps = model_of(options).steps;
  for (std::int64_t s = 0; s < steps; ++s) {
    const data::Batch batch = dataset.batch(sampler.next());
    const bool last = s + 1 == steps;
    // A memory timeline is to show a step, and not how long rank 0 waited for the others to begin
    // it.
    if (last) communicator.barrier();
    before = communicator.traffic();
    if (memory_timelines && last) plots::start_timeline(strategy.list().bytes() / 4096);
    result = trainer.step({batch});
    if (memory_timelines && last) timeline = plots::stop_timeline();
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
  const DemoModel chosen = model_of(options);
  const tools::MlpConfig& config = chosen.config;
  const Regression dataset(config);
  data::DistributedSampler sampler(Regression::kRows, chosen.batch * communicator.size(),
                                   communicator.rank(), communicator.size(), /*seed=*/1);
  const auto model = nn::defer([&] { return std::make_shared<tools::Mlp>(config); });
  nn::SeededValues values(/*seed=*/7);
  tools::Registry registry;
  options.register_chapter(registry);
  const auto strategy =
      registry.make(options.mode, {*model, communicator, optim::adamw(), &values, /*variant=*/""});
  const tools::Loss loss = tools::losses_of(*model);
  if (options.narrate) {
    const std::int64_t weight = options.narrated_width * options.narrated_width;
    const data::Batch batch = dataset.batch(sampler.next());
    narrate(
        *strategy, [&] { return loss(batch); }, /*a_letter=*/weight / 4);
  } else {
    train(*strategy, loss, dataset, sampler, options);
  }
  return "";
}

int launch(const DemoOptions& options) {
  const bool writes = !options.memory_timeline.empty();
  if (writes) base::check_writable(options.memory_timeline);
  dist::LaunchOptions launch;
  launch.world_size = options.world_size;
  launch.connect.timeout = std::chrono::seconds(60);
  dist::check_all_well(dist::launch_ranks(
      launch, [&](dist::Communicator& communicator) { return run_rank(communicator, options); }));
  if (writes) fmt::print("memory timeline: {}\n", options.memory_timeline);
  return 0;
}

}  // namespace

int run_demo(int argc, char** argv, const std::string& mode,
             void (*register_chapter)(tools::Registry&), std::int64_t narrated_width) {
  DemoOptions options;
  options.mode = mode;
  options.register_chapter = register_chapter;
  options.narrated_width = narrated_width;
  CLI::App app{"Trains a small MLP under " + mode + " and prints what each rank held and sent."};
  app.add_option("--mode", options.mode, "a variant, for example " + mode + ":…")
      ->capture_default_str();
  auto* ranks = app.add_option("--nproc", options.world_size, "ranks (2, narrated 3)")
                    ->check(CLI::Range(1, 64));
  auto* memory_timeline =
      app.add_option("--memory-timeline", options.memory_timeline,
                     "memory timeline: what rank 0's allocator held along the last step, as "
                     "JSON; ./run draws it beside the file");
  app.add_flag("--narrate", options.narrate,
               "3 ranks, a model of a few letters: who holds what, when")
      ->excludes(memory_timeline);
  CLI11_PARSE(app, argc, argv);
  if (options.narrate && ranks->empty()) options.world_size = 3;
  options.run = tools::run_metadata(argc, argv);
  return run_program(options.mode, [&] {
    memory::install();
    return launch(options);
  });
}

}  // namespace zero::step
