#include "fake_process_group.hpp"

#include <ATen/ops/equal.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>

#include <tools/plan/states.hpp>
#include <tools/plan/whole_parameters.hpp>
#include <zero/base/error.hpp>
#include <zero/base/program.hpp>
#include <zero/base/sha256.hpp>
#include <zero/data/sampler.hpp>
#include <zero/distributed/launch.hpp>
#include <zero/io/stored_values.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/nn/llama.hpp>
#include <zero/train/fake_process_group.hpp>
#include <zero/train/registry.hpp>
#include <zero/train/trace.hpp>
#include <zero/train/trainer.hpp>

#include "fake_process_group_report.hpp"
#include "progress.hpp"
#include "rank_run.hpp"
#include "samples.hpp"

namespace zero::ladder {
namespace {

using ladder::FakeProcessGroupRow;
using memory::Category;

bool cuts_tensors(const std::string& mode) {
  return mode.starts_with("tensor_") || mode.starts_with("engine");
}

// "tensor_zero3:whole" is stage 3.
plan::Stage stage_of(const std::string& mode) {
  const std::string name = mode.substr(0, mode.find(':'));
  for (const auto& [digit, stage] : {std::pair{'1', plan::Stage::kZero1},
                                     {'2', plan::Stage::kZero2},
                                     {'3', plan::Stage::kZero3}}) {
    if (name.ends_with(digit)) return stage;
  }
  return plan::Stage::kDdp;
}

// Model states of this rank by the planner's formulas, which know nothing of the chapters' code.
plan::States planned_states(const std::string& mode, const Options& options) {
  const nn::LlamaConfig config = options.config();
  const plan::Policy policy = plan::policy(options.dtype, "adamw");
  const plan::Stage stage = stage_of(mode);
  if (stage == plan::Stage::kDdp || cuts_tensors(mode)) {
    return plan::model_states(config.parameters(), policy, stage, options.fake_process_group);
  }
  const std::int64_t owned =
      plan::owned_elements(plan::llama_tensors(config), options.fake_process_group,
                           train::ownership_from(options.ownership))
          .at(static_cast<std::size_t>(options.fake_rank));
  const plan::States whole = plan::model_states(config.parameters(), policy, stage, 1);
  const plan::States mine = plan::model_states(owned, policy, stage, 1);
  return {stage >= plan::Stage::kZero3 ? mine.parameters : whole.parameters,
          stage >= plan::Stage::kZero2 ? mine.gradients : whole.gradients,
          stage >= plan::Stage::kZero1 ? mine.optimizer : whole.optimizer};
}

std::unique_ptr<nn::ParameterSource> first_values(const Options& options, nn::Llama& model) {
  if (options.weights.empty()) return std::make_unique<nn::SeededValues>(options.seed);
  return std::make_unique<io::StoredValues>(
      options.weights, nn::list_parameters(model),
      io::llama_values_options(options.config(), options.seed));
}

// One digest for each piece that this rank updates.
std::vector<std::string> piece_digests(const train::Strategy& strategy) {
  std::vector<std::string> digests;
  for (std::size_t i = 0; i < strategy.list().size(); ++i) {
    const at::Tensor piece = strategy.piece(i).tensor;
    if (!piece.defined() || piece.numel() == 0) continue;
    const at::Tensor bytes = piece.detach().contiguous();
    digests.push_back(base::Sha256().add(bytes.const_data_ptr(), bytes.nbytes()).hex());
  }
  return digests;
}

// An update that is too small for a piece of 2 bytes to show is in the master weight alone.
bool master_differs(train::Strategy& strategy, const at::Tensor& piece) {
  const auto states = strategy.optimizer().state(piece);
  const auto master = states.find("master");
  return master != states.end() &&
         !at::equal(master->second, piece.detach().flatten().to(at::kFloat));
}

bool every_piece_changed(train::Strategy& strategy, const std::vector<std::string>& before) {
  const std::vector<std::string> after = piece_digests(strategy);
  std::size_t d = 0;
  for (std::size_t i = 0; i < strategy.list().size(); ++i) {
    const at::Tensor piece = strategy.piece(i).tensor;
    if (!piece.defined() || piece.numel() == 0) continue;
    if (before.at(d) == after.at(d) && !master_differs(strategy, piece)) return false;
    ++d;
  }
  return true;
}

// The first step makes the optimizer's states and warms everything up.
double median_after_first(std::vector<double> values) {
  if (values.size() > 1) values.erase(values.begin());
  std::sort(values.begin(), values.end());
  const std::size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

void train(train::Strategy& strategy, const Samples& samples, const std::string& mode,
           const Options& options, FakeProcessGroupRow& row) {
  dist::Communicator& communicator = strategy.communicator();
  data::DistributedSampler sampler(samples.dataset->size(), options.batch * communicator.size(),
                                   communicator.rank(), communicator.size(), options.seed);
  train::TrainerOptions trainer_options;
  // Gradients of float16 are often too small for it.
  if (options.dtype == "fp16") trainer_options.loss_scale = train::LossScaleOptions();
  train::Trainer trainer(strategy, trainer_options);
  ladder::Progress progress(mode, options.steps);
  std::optional<train::Trace> trace;
  std::vector<double> seconds, source_seconds;
  for (std::int64_t s = 0; s < options.steps; ++s) {
    const data::Batch batch = samples.dataset->batch(sampler.next());
    if (!options.trace.empty() && s + 1 == options.steps) trace.emplace(&communicator);
    memory::reset_peaks();
    const dist::Traffic before = communicator.traffic();
    const train::StepResult step = trainer.step({batch});
    const dist::Traffic sent = communicator.traffic().since(before);
    if (trace) trace->finish(options.trace_file(mode, communicator.rank()));
    row.sent = sent.bytes(dist::Purpose::kGradient) + sent.bytes(dist::Purpose::kParameter);
    row.losses.push_back(step.loss);
    seconds.push_back(step.seconds.total);
    source_seconds.push_back(step.seconds.communication);
    progress.step({{"loss", fmt::format("{:.4f}", step.loss)},
                   {"step", fmt::format("{:.2f} s", step.seconds.total)}});
  }
  progress.finish();
  row.step_seconds = median_after_first(seconds);
  row.source_seconds = median_after_first(source_seconds);
}

struct FakeResult {
  FakeProcessGroupRow row;
  std::int64_t parameters = 0;
  std::int64_t parameter_bytes = 0;
};

FakeResult run_mode(const std::string& mode, const Options& options) {
  const Samples samples = read_samples(options);
  const memory::Snapshot base = memory::snapshot();
  const std::int64_t resident_base = memory::resident_set_bytes();
  std::shared_ptr<nn::Llama> model;
  {
    const nn::DeferredStorage deferred;
    model = std::make_shared<nn::Llama>(options.config());
  }
  const std::unique_ptr<nn::ParameterSource> values = first_values(options, *model);
  dist::FakeCommunicator communicator(options.fake_rank, options.fake_process_group,
                                      train::first_values_of(*model, *values));
  train::Registry registry;
  train::register_all_chapters(registry);
  const auto strategy = registry.make(
      mode, {*model, communicator, optimizer_of(options), values.get(), "",
             train::ownership_from(options.ownership), train::Accumulation::kLocal,
             options.reduce_dtype == "fp32" ? dist::ReduceType::kFloat32 : dist::ReduceType::kOwn});

  FakeResult result;
  FakeProcessGroupRow& row = result.row;
  row.mode = mode;
  const std::vector<std::string> before = piece_digests(*strategy);
  train(*strategy, samples, mode, options, row);
  const memory::Snapshot held = memory::snapshot();
  const auto grown = [&](Category c) { return held[c] - base[c]; };
  row.measured = {grown(Category::kParameters), grown(Category::kGradients),
                  grown(Category::kOptimizer)};
  row.other = held.total - base.total - row.measured.total();
  row.peak = held.total_peak - base.total;
  row.resident_growth = memory::resident_set_bytes() - resident_base;
  row.every_piece_changed = every_piece_changed(*strategy, before);
  const train::ModelStateBytes formula = strategy->predicted_bytes();
  row.formula = {formula.parameters, formula.gradients, formula.optimizer};
  row.formula_sent = strategy->predicted_traffic();
  row.planned = planned_states(mode, options).total();
  result.parameters = strategy->list().numel();
  result.parameter_bytes = strategy->list().bytes();
  return result;
}

// A process of its own for every mode: each begins with nothing resident.
FakeResult run_in_a_process(const std::string& mode, const Options& options) {
  dist::LaunchOptions one;
  one.world_size = 1;
  const auto exits = dist::fork_processes(one, [&](int) {
    const FakeResult result = run_mode(mode, options);
    return base::Json{{"row", ladder::to_json(result.row)},
                      {"parameters", result.parameters},
                      {"parameter_bytes", result.parameter_bytes}}
        .dump();
  });
  dist::check_all_well(exits, fmt::format("mode {} failed", mode));
  const base::Json json = base::Json::parse(exits.front().result);
  return {ladder::fake_row_from_json(json.at("row")), json.at("parameters"),
          json.at("parameter_bytes")};
}

void refuse_a_launcher() {
  const auto environment = dist::rank_environment();
  if (!environment) return;
  throw Error(fmt::format(
      "--fake-process-group is one process by itself, and a launcher started this one as rank "
      "{} of {}: start it without",
      environment->rank, environment->world_size));
}

void check_before_training(const Options& options) {
  const Samples samples = read_samples(options);
  base::check_writable(options.json);
  if (!options.trace.empty()) base::check_writable(options.trace);
  fmt::print("{} as {}, rank {} of {} in a fake process group, {} steps of {} x {} tokens a rank\n",
             options.model_name(), options.reviews() ? "5-class classifier" : "language model",
             options.fake_rank, options.fake_process_group, options.steps, options.batch,
             options.sequence_length);
  for (const std::string& note : samples.notes) fmt::print("note: {}\n", note);
  std::fflush(stdout);
}

}  // namespace

int run_fake_process_group(Options& options, base::Json metadata) {
  refuse_a_launcher();
  choose_model(options);
  check_before_training(options);
  ladder::FakeProcessGroupReport report;
  report.world_size = options.fake_process_group;
  report.rank = options.fake_rank;
  report.model = options.model_name();
  report.task = options.task;
  report.dtype = options.dtype;
  report.optimizer = "AdamW";
  report.steps = options.steps;
  report.batch_size = options.batch;
  report.sequence_length = options.sequence_length;
  for (const std::string& mode : options.modes) {
    FakeResult result = run_in_a_process(mode, options);
    report.parameters = result.parameters;
    report.parameter_bytes = result.parameter_bytes;
    report.rows.push_back(std::move(result.row));
  }
  std::cout << "\n" << ladder::to_text(report) << "\nfigures: " << options.json << std::endl;
  base::Json json = ladder::to_json(report);
  json["run"] = std::move(metadata);
  base::write_json(options.json, json);
  const std::vector<std::string> failures = ladder::verdict(report);
  for (const std::string& failure : failures) log_error("FAILED " + failure);
  return failures.empty() ? 0 : 1;
}

double needed_by_fake_rank(const Options& options) {
  const nn::LlamaConfig config = options.config();
  std::int64_t states = 0;
  for (const std::string& mode : options.modes) {
    states = std::max(states, planned_states(mode, options).total());
  }
  // Parameters and gradients of the root and of a layer, one of each on its way.
  const plan::Model model = plan::model_of(config, options.model_name());
  const std::int64_t transient = 4 * (2 * model.root + 4 * model.largest_unit());
  return static_cast<double>(states + transient) + activation_bytes(options) + kProgramBytes;
}

}  // namespace zero::ladder
