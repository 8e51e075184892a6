#include "rank_run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include <tools/plots/memory_timeline.hpp>
#include <zero/base/error.hpp>
#include <zero/base/sha256.hpp>
#include <zero/data/sampler.hpp>
#include <zero/io/save_model.hpp>
#include <zero/io/stored_values.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/memory/timeline.hpp>
#include <zero/nn/llama.hpp>
#include <zero/optim/adamw.hpp>
#include <zero/optim/master_weights.hpp>
#include <zero/train/fake_process_group.hpp>
#include <zero/train/registry.hpp>
#include <zero/train/trace.hpp>
#include <zero/train/trainer.hpp>

#include "checkpoints.hpp"
#include "device.hpp"
#include "digests.hpp"
#include "progress.hpp"
#include "samples.hpp"

namespace zero::ladder {
namespace {

using ladder::mib;
using memory::Category;

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

// What is measured within every step; the last one that was not left out is reported, times and
// page faults as medians.
class Meter {
 public:
  Meter(const dist::Communicator& communicator, std::int64_t base, std::int64_t resident_base)
      : communicator_(communicator), base_(base), resident_base_(resident_base) {}

  void begin_step() {
    memory::reset_peaks();
    before_ = communicator_.traffic();
    faults_before_ = memory::page_faults();
  }

  void end_step(const train::StepResult& step) {
    seconds_.push_back(step.seconds);
    faults_.push_back(static_cast<double>(memory::page_faults() - faults_before_));
    // Where the loss scale was too large nothing is updated, and no parameter is sent.
    if (step.skipped && updated_) return;
    updated_ = !step.skipped;
    steady_ = memory::snapshot();
    traffic_ = communicator_.traffic().since(before_);
    resident_ = memory::resident_set_bytes();
  }

  void fill(ladder::RankRow& row) const {
    row.rank = communicator_.rank();
    row.parameter_mib = mib(steady_[Category::kParameters]);
    row.gradient_mib = mib(steady_[Category::kGradients]);
    row.optimizer_mib = mib(steady_[Category::kOptimizer]);
    row.total_mib = mib(steady_.total - base_);
    row.other_mib = row.total_mib - mib(steady_.model_states());
    row.peak_mib = mib(steady_.total_peak - base_);
    row.peak_states_mib = mib(steady_.states_peak);
    row.resident_growth_mib = mib(resident_ - resident_base_);
    row.high_water_mib = mib(memory::resident_set_peak_bytes());
    row.page_faults = median_of(faults_);
    row.sent_gradient_bytes = traffic_.bytes(dist::Purpose::kGradient);
    row.sent_parameter_bytes = traffic_.bytes(dist::Purpose::kParameter);
    row.sent_control_bytes = traffic_.bytes(dist::Purpose::kControl);
    row.step_seconds = median_of(&train::PhaseSeconds::total);
    row.forward_seconds = median_of(&train::PhaseSeconds::forward);
    row.backward_seconds = median_of(&train::PhaseSeconds::backward);
    row.communication_seconds = median_of(&train::PhaseSeconds::communication);
    row.in_flight_seconds = median_of(&train::PhaseSeconds::in_flight);
    row.optimizer_seconds = median_of(&train::PhaseSeconds::optimizer);
  }

 private:
  static double median_of(std::vector<double> values) {
    // The first step makes the optimizer's states and warms everything up.
    if (values.size() > 1) values.erase(values.begin());
    return median(std::move(values));
  }

  double median_of(double train::PhaseSeconds::*phase) const {
    std::vector<double> values;
    for (const train::PhaseSeconds& seconds : seconds_) values.push_back(seconds.*phase);
    return median_of(std::move(values));
  }

  const dist::Communicator& communicator_;
  std::int64_t base_;
  std::int64_t resident_base_;
  dist::Traffic before_;
  dist::Traffic traffic_;
  std::int64_t faults_before_ = 0;
  std::vector<double> faults_;
  bool updated_ = false;
  memory::Snapshot steady_;
  std::int64_t resident_ = 0;
  std::vector<train::PhaseSeconds> seconds_;
};

// Digests the first gradients of the small parameters: enough to see that ranks differ, too little
// to cost time.
void watch_first_gradients(train::Strategy& strategy, base::Sha256& digest) {
  strategy.observe_gradients([&digest](std::size_t, const at::Tensor& gradient) {
    if (gradient.numel() < (1 << 16)) digest.add(bytes_of(gradient.cpu().contiguous()));
  });
}

// What is saved or recorded takes collectives, so that all ranks do it or none; where it goes is
// each rank's own affair.
std::string with(const char* option, const std::string& place) {
  return place.empty() ? fmt::format("no {}", option) : option;
}

void agree_on_everything(dist::Communicator& communicator, const std::string& mode,
                         const Options& o, const data::Dataset& dataset) {
  communicator.verify_same_on_all_ranks(
      "the run",
      fmt::format("mode {}\ntask {}\nmodel {}\nmodel's config {}\nbatch {}\nsequences of {}\n"
                  "{} steps\nlearning rate {}\nseed {}\nownership {}\ndtype {}\n"
                  "gradients added as {}\n"
                  "checkpoints {}\na run {}\n{}\n{}\n{}\na time limit of {} s\n"
                  "data (tokens and tokenizer) {}",
                  mode, o.task, o.model_name(), nlohmann::json(o.weights_config).dump(), o.batch,
                  o.sequence_length, o.steps, o.learning_rate, o.seed, o.ownership, o.dtype,
                  o.reduce_dtype, when_kept(o),
                  o.resume.empty() ? "from the start" : "that goes on", with("--save", o.save),
                  with("--memory-timeline", o.memory_timeline), with("--trace", o.trace),
                  o.timeout_seconds, dataset.fingerprint()));
}

std::shared_ptr<nn::Llama> model_without_storage(const Options& options) {
  const nn::DeferredStorage deferred;
  return std::make_shared<nn::Llama>(options.config());
}

std::unique_ptr<io::StoredValues> stored_values(const Options& options, nn::Llama& model) {
  return std::make_unique<io::StoredValues>(
      options.weights, nn::list_parameters(model),
      io::llama_values_options(options.config(), options.seed));
}

// Only rank 0 is asked for values, so only rank 0 opens the folder. A rank of a fake process group
// makes those of all.
std::unique_ptr<nn::ParameterSource> first_values(const dist::Communicator& communicator,
                                                  const Options& options, nn::Llama& model) {
  const bool asked = communicator.rank() == 0 || options.fake_process_group > 0;
  if (options.weights.empty() || !asked) {
    return std::make_unique<nn::SeededValues>(options.seed);
  }
  return stored_values(options, model);
}

void save(train::Strategy& strategy, const Options& options, std::int64_t pad_id) {
  const nn::LlamaConfig config = options.config();
  nlohmann::json json = options.weights.empty()
                            ? nn::to_hugging_face_json(config)
                            : nn::to_hugging_face_json(config, options.weights_config);
  // transformers finds the last token of a review by what is not padding.
  if (config.classes > 0) json["pad_token_id"] = pad_id;
  io::save_model(strategy, json, options.save);
}

// The steps of one run: trains, measures, and brings losses and digests into `result`.
void train_steps(train::Strategy& strategy, data::DistributedSampler& sampler,
                 const Samples& samples, const std::string& mode, const Options& options,
                 const RunExtras& extras, Meter& meter, RankResult& result) {
  dist::Communicator& communicator = strategy.communicator();
  base::Sha256 gradient_digest;
  watch_first_gradients(strategy, gradient_digest);
  train::TrainerOptions trainer_options;
  trainer_options.first_step = sampler.step();
  // Gradients of float16 are often too small for it.
  if (options.dtype == "fp16") trainer_options.loss_scale = train::LossScaleOptions();
  train::Trainer trainer(strategy, trainer_options);
  put_back_loss_scale(trainer, options);
  ladder::ProgressOptions progress_options;
  const bool shows = communicator.rank() == 0 || options.fake_process_group > 0;
  progress_options.silent = !shows || !extras.show_progress;
  progress_options.done_before = sampler.step();
  ladder::Progress progress(extras.label.empty() ? mode : extras.label, options.steps,
                            progress_options);
  std::optional<train::Trace> trace;
  while (sampler.step() < options.steps) {
    const data::Batch batch = to_device(strategy.model(), samples.dataset->batch(sampler.next()));
    if (result.losses.empty()) result.batch_digest = digest_of(batch.inputs);
    const bool last = sampler.step() == options.steps;
    if (extras.traces && last) trace.emplace(&communicator);
    const bool memory_timelines = extras.memory_timelines && last && communicator.rank() == 0;
    // A memory timeline is to show a step, and not how long rank 0 waited for the others to begin
    // it.
    if (extras.memory_timelines && last) communicator.barrier();
    if (memory_timelines) memory::start_timeline(strategy.list().bytes() / 4096);
    meter.begin_step();
    const train::StepResult step = trainer.step({batch});
    meter.end_step(step);
    if (memory_timelines)
      result.memory_timeline = plots::timeline_of_mode(mode, memory::stop_timeline());
    if (trace) trace->finish(options.trace_file(mode, communicator.rank()));
    strategy.observe_gradients({});
    result.losses.push_back(step.loss);
    result.loss_scale = step.loss_scale;
    result.skipped_steps += step.skipped ? 1 : 0;
    keep(strategy, trainer, sampler, mode, options, *samples.dataset);
    progress.step({{"loss", fmt::format("{:.4f}", step.loss)},
                   {"step", fmt::format("{:.2f} s", step.seconds.total)}});
  }
  progress.finish();
  result.gradient_digest = gradient_digest.hex();
  trainer.zero_grad();
}

}  // namespace

optim::OptimizerFactory optimizer_of(const Options& options) {
  optim::AdamWOptions adamw;
  adamw.learning_rate = options.learning_rate;
  return options.mixed() ? optim::with_master_weights(optim::adamw(adamw)) : optim::adamw(adamw);
}

RankResult run_rank(dist::Communicator& communicator, const std::string& mode,
                    const Options& options, const RunExtras& extras) {
  const Samples samples = read_samples(options);
  agree_on_everything(communicator, mode, options, *samples.dataset);
  const at::Device device = enter_rank(options);
  const std::int64_t base = memory::snapshot().total;
  const std::int64_t resident_base = memory::resident_set_bytes();

  train::Registry registry;
  train::register_all_chapters(registry);
  const std::shared_ptr<nn::Llama> model = model_without_storage(options);
  to_device(device, *model);
  std::unique_ptr<nn::ParameterSource> values = first_values(communicator, options, *model);
  auto* const fake = dynamic_cast<dist::FakeCommunicator*>(&communicator);
  if (fake != nullptr) fake->set_source(train::first_values_of(*model, *values));
  const auto strategy = registry.make(
      mode, {*model, communicator, optimizer_of(options), values.get(), "",
             train::ownership_from(options.ownership), train::Accumulation::kLocal,
             options.reduce_dtype == "fp32" ? dist::ReduceType::kFloat32 : dist::ReduceType::kOwn});

  data::DistributedSampler sampler(samples.dataset->size(), options.batch * communicator.size(),
                                   communicator.rank(), communicator.size(), options.seed);
  resume(*strategy, sampler, options);
  RankResult result;
  // The other ranks of a fake process group learn nothing: only what this one updates can change.
  const std::vector<std::string> before =
      fake != nullptr ? piece_digests(*strategy) : parameter_digests(*strategy);
  Meter meter(communicator, base, resident_base);
  train_steps(*strategy, sampler, samples, mode, options, extras, meter, result);
  meter.fill(result.row);
  if (fake != nullptr) {
    result.every_tensor_changed = every_piece_changed(*strategy, before);
  } else {
    const std::vector<std::string> after = parameter_digests(*strategy);
    result.row.digest = combine(after);
    result.every_tensor_changed = all_trainable_changed(*strategy, before, after);
  }
  result.formula_mib = mib(strategy->predicted_bytes().total());
  result.row.formula_mib = result.formula_mib;
  result.predicted_traffic = strategy->predicted_traffic();
  result.parameters = strategy->list().numel();
  result.parameter_bytes = strategy->list().bytes();
  if (extras.saves) save(*strategy, options, samples.pad_id);
  communicator.barrier();
  return result;
}

std::string describe_weights(const Options& options) {
  return stored_values(options, *model_without_storage(options))->describe();
}

std::string to_text(const RankResult& r) {
  base::Json json =
      ladder::to_json(ladder::LadderReport{}, ladder::ModeRow{"", {r.row}, 0, r.losses});
  json["rank_result"] = {{"formula_mib", r.formula_mib},
                         {"predicted_traffic", r.predicted_traffic},
                         {"every_tensor_changed", r.every_tensor_changed},
                         {"loss_scale", r.loss_scale},
                         {"skipped_steps", r.skipped_steps},
                         {"batch_digest", r.batch_digest},
                         {"gradient_digest", r.gradient_digest},
                         {"parameters", r.parameters},
                         {"parameter_bytes", r.parameter_bytes},
                         {"memory timeline", r.memory_timeline}};
  return json.dump();
}

RankResult from_text(const std::string& text) {
  const base::Json json = base::Json::parse(text);
  const ladder::ModeRow mode = ladder::mode_from_json(json);
  const base::Json& extra = json.at("rank_result");
  RankResult r;
  r.row = mode.ranks.front();
  r.losses = mode.losses;
  r.formula_mib = extra.at("formula_mib");
  r.predicted_traffic = extra.at("predicted_traffic");
  r.every_tensor_changed = extra.at("every_tensor_changed");
  r.loss_scale = extra.at("loss_scale");
  r.skipped_steps = extra.at("skipped_steps");
  r.batch_digest = extra.at("batch_digest");
  r.gradient_digest = extra.at("gradient_digest");
  r.parameters = extra.at("parameters");
  r.parameter_bytes = extra.at("parameter_bytes");
  r.memory_timeline = extra.at("memory timeline");
  return r;
}

}  // namespace zero::ladder
