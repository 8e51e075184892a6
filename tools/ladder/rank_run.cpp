#include "rank_run.hpp"

#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <span>

#include <tools/plots/memory_timeline.hpp>
#include <zero/base/error.hpp>
#include <zero/base/sha256.hpp>
#include <zero/data/sampler.hpp>
#include <zero/distributed/agreement.hpp>
#include <zero/io/save_model.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/memory/timeline.hpp>
#include <zero/optim/adamw.hpp>
#include <zero/optim/master_weights.hpp>
#include <zero/train/fake_process_group.hpp>
#include <zero/train/loop/trainer.hpp>
#include <zero/train/registry.hpp>
#include <zero/train/trace.hpp>
#include <zero/train/unsharded_parameters.hpp>

#include "checkpoints.hpp"
#include "device.hpp"
#include "mesh_run.hpp"
#include "progress.hpp"
#include "samples.hpp"

namespace zero::ladder {
namespace {

using memory::Category;

// The fields of a result and their keys, for writing and for reading.
template <typename Result, typename Take>
void for_each_field(Result& result, const Take& take) {
  take("row", result.row);
  take("predicted_traffic", result.predicted_traffic);
  take("predicted_pipeline_traffic", result.predicted_pipeline_traffic);
  take("losses", result.losses);
  take("validation", result.validation);
  take("loss_scale", result.loss_scale);
  take("skipped_steps", result.skipped_steps);
  take("every_tensor_changed", result.every_tensor_changed);
  take("batch_digest", result.batch_digest);
  take("gradient_digest", result.gradient_digest);
  take("memory_timeline", result.memory_timeline);
}

// An update that is too small for a parameter of 2 bytes to show is in the master weight alone.
bool master_differs(train::Strategy& strategy, std::size_t index) {
  const at::Tensor mine = strategy.piece(index).tensor;
  if (!mine.defined()) return false;
  const auto states = strategy.optimizer().state(mine);
  const auto master = states.find("master");
  if (master == states.end()) return false;
  return !at::equal(master->second, mine.detach().flatten().to(at::kFloat));
}

// SHA-256 of a tensor's bytes, 64 hexadecimal digits.
std::string digest_of(const at::Tensor& tensor) {
  const at::Tensor bytes = tensor.cpu().contiguous();
  return base::Sha256().add(bytes.const_data_ptr(), bytes.nbytes()).hex();
}

// One digest per parameter, each made whole for the moment, over the data and the tensor axis: unit
// by unit, so that checking does not need more memory than training. Called by all ranks.
std::vector<std::string> parameter_digests(train::Strategy& strategy) {
  const nn::ParameterList& list = strategy.list();
  std::vector<std::string> digests(list.size());
  for (std::size_t u = 0; u < list.units.size(); ++u) {
    const train::UnshardedParameters whole(strategy, u);
    for (const std::size_t i : list.units[u].parameters) {
      const nn::Parameter& p = list.parameters[i];
      digests[i] = digest_of(p.placement.whole_of(p.tensor.detach()));
    }
  }
  return digests;
}

// One digest per parameter of which this rank updates a piece, of that piece; empty for others.
std::vector<std::string> piece_digests(const train::Strategy& strategy) {
  std::vector<std::string> digests(strategy.list().size());
  for (std::size_t i = 0; i < digests.size(); ++i) {
    const at::Tensor piece = strategy.piece(i).tensor;
    if (piece.defined() && piece.numel() > 0) digests[i] = digest_of(piece.detach());
  }
  return digests;
}

// Whether training changed every trainable piece that this rank updates, whose digests were
// `before`. A change in the master weight alone counts.
bool every_piece_changed(train::Strategy& strategy, const std::vector<std::string>& before) {
  const std::vector<std::string> after = piece_digests(strategy);
  for (std::size_t i = 0; i < after.size(); ++i) {
    if (after[i].empty() || !strategy.list().parameters[i].tensor.requires_grad()) continue;
    if (after[i] == before[i] && !master_differs(strategy, i)) return false;
  }
  return true;
}

// Whether training changed every trainable parameter, whose digests were `before` and are `after`.
// A change in the master weight alone counts. Called by all ranks; the same answer on all of a data
// axis.
bool all_trainable_changed(train::Strategy& strategy, const std::vector<std::string>& before,
                           const std::vector<std::string>& after) {
  at::Tensor changed = at::zeros({static_cast<std::int64_t>(before.size())}, at::kInt);
  auto* flag = changed.mutable_data_ptr<std::int32_t>();
  for (std::size_t i = 0; i < before.size(); ++i) {
    flag[i] = before[i] != after[i] || master_differs(strategy, i) ? 1 : 0;
  }
  // A master weight is known to its owner only.
  strategy.communicator().all_reduce(changed, dist::Purpose::kControl, dist::ReduceOp::kSum).wait();
  for (std::size_t i = 0; i < before.size(); ++i) {
    if (strategy.list().parameters[i].tensor.requires_grad() && flag[i] == 0) return false;
  }
  return true;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

// What is measured within every step; the last one that was not left out is reported, times and
// page faults as medians.
class Meter {
 public:
  Meter(const MeshRun& run, std::int64_t base, std::int64_t resident_base)
      : run_(run), base_(base), resident_base_(resident_base) {}

  // `predicted`: bytes that the step sends on the data axis, by formula.
  void begin_step(std::int64_t predicted) {
    predicted_before_ = predicted;
    memory::reset_peaks();
    before_ = run_.traffic();
    faults_before_ = memory::page_faults();
  }

  void end_step(const train::StepResult& step) {
    seconds_.push_back(step.seconds);
    faults_.push_back(static_cast<double>(memory::page_faults() - faults_before_));
    // Where the loss scale was too large nothing is updated, and no parameter is sent.
    if (step.skipped && updated_) return;
    updated_ = !step.skipped;
    steady_ = memory::snapshot();
    const AxisTraffic now = run_.traffic();
    traffic_ = {now.data.since(before_.data), now.pipeline.since(before_.pipeline),
                now.tensor.since(before_.tensor)};
    predicted_ = predicted_before_;
    resident_ = memory::resident_set_bytes();
  }

  // Of the step whose bytes are reported.
  std::int64_t predicted() const { return predicted_; }

  void fill(RankRow& row) const {
    row.rank = run_.mesh().world().rank();
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
    row.sent_gradient_bytes = traffic_.data.bytes(dist::Purpose::kGradient);
    row.sent_parameter_bytes = traffic_.data.bytes(dist::Purpose::kParameter);
    row.sent_control_bytes = traffic_.data.bytes(dist::Purpose::kControl);
    row.sent_data_bytes = without_control(traffic_.data);
    row.sent_pipeline_bytes = without_control(traffic_.pipeline);
    row.sent_tensor_bytes = without_control(traffic_.tensor);
    row.sent_between_hosts_bytes = traffic_.data.between_hosts() +
                                   traffic_.pipeline.between_hosts() +
                                   traffic_.tensor.between_hosts();
    row.step_seconds = median_of(&train::PhaseSeconds::total);
    row.forward_seconds = median_of(&train::PhaseSeconds::forward);
    row.backward_seconds = median_of(&train::PhaseSeconds::backward);
    row.communication_seconds = median_of(&train::PhaseSeconds::communication);
    row.in_flight_seconds = median_of(&train::PhaseSeconds::in_flight);
    row.optimizer_seconds = median_of(&train::PhaseSeconds::optimizer);
  }

 private:
  static std::int64_t without_control(const dist::Traffic& traffic) {
    return traffic.bytes() - traffic.bytes(dist::Purpose::kControl);
  }

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

  const MeshRun& run_;
  std::int64_t base_;
  std::int64_t resident_base_;
  AxisTraffic before_;
  AxisTraffic traffic_;
  std::int64_t predicted_before_ = 0;
  std::int64_t predicted_ = 0;
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
  strategy.passes().observe_gradients([&digest](std::size_t, const at::Tensor& gradient) {
    if (gradient.numel() >= (1 << 16)) return;
    const at::Tensor bytes = gradient.cpu().contiguous();
    digest.add(bytes.const_data_ptr(), bytes.nbytes());
  });
}

// Saving and recording use collectives, so all ranks do both or neither. Each rank may have a path
// of its own.
std::string with(const char* option, const std::string& place) {
  return place.empty() ? fmt::format("no {}", option) : option;
}

void agree_on_everything(dist::Communicator& communicator, const std::string& mode,
                         const Options& o, const data::Dataset& dataset) {
  dist::verify_same(
      communicator, "the run",
      fmt::format("mode {}\ntask {}\nmodel {}\nmodel's config {}\n"
                  "{} tensor ranks, {} stages, schedule {}\nsequence parallel: {}\n"
                  "partitioned activations: {}\n{} micro-batches\nbatch {}\nsequences of {}\n"
                  "{} steps\nlearning rate {}\nseed {}\nownership {}\ndtype {}\n"
                  "gradients added as {}\nactivation checkpointing: {}\n"
                  "validation by {} of the samples\n"
                  "checkpoints {}\na run {}\n{}\n{}\n{}\na time limit of {} s\n"
                  "data (tokens and tokenizer) {}",
                  mode, o.task, o.model_name(), nlohmann::json(o.weights_config).dump(),
                  o.tensor_ranks, o.stages, o.pipeline_schedule, o.sequence_parallel,
                  o.partition_activations, o.micro_batches, o.batch, o.sequence_length, o.steps,
                  o.learning_rate, o.seed, o.ownership, o.dtype, o.reduce_dtype,
                  o.activation_checkpointing, o.validation, when_saved(o),
                  o.resume.empty() ? "from the start" : "that goes on", with("--save", o.save),
                  with("--memory-timeline", o.memory_timeline), with("--trace", o.trace),
                  o.timeout_seconds, dataset.fingerprint()));
}

// AdamW, with fp32 master weights where parameters have 2 bytes.
optim::OptimizerFactory optimizer_of(const Options& options) {
  optim::AdamWOptions adamw;
  adamw.learning_rate = options.learning_rate;
  return options.mixed() ? optim::with_master_weights(optim::adamw(adamw)) : optim::adamw(adamw);
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

// A rank's training state.
struct Training {
  const MeshRun& run;
  train::Strategy& strategy;
  train::Trainer& trainer;
  data::DistributedSampler& sampler;
  const Samples& samples;
  const Options& options;
};

// Evaluates what is held out, if anything is: before the first step of this run, after the last and
// where an epoch ends or a checkpoint was due. Batches are about as large as a micro-batch, none
// empty.
void validate(const Training& t, RankResult& result) {
  const std::int64_t step = t.sampler.step(), size = std::ssize(t.samples.validation);
  const std::int64_t every =
      t.options.checkpoint_every > 0 ? t.options.checkpoint_every : t.sampler.steps_per_epoch();
  const bool due = result.losses.empty() || step == t.options.steps || step % every == 0;
  if (size == 0 || !due) return;
  const int ranks = t.run.mesh().data().size();
  const auto rounds = std::max<std::int64_t>(1, size / (t.options.batch * ranks));
  const int pieces = ranks * static_cast<int>(rounds);
  std::vector<data::Batch> batches;
  for (int piece = t.run.mesh().data().rank(); piece < pieces; piece += ranks) {
    const auto [begin, end] = data::rank_slice(size, piece, pieces);
    const auto first = t.samples.validation.begin();
    const std::vector<std::int64_t> mine(first + begin, first + end);
    batches.push_back(to_device(t.run.model(), t.samples.dataset->batch(mine)));
  }
  result.validation.push_back(base::Json{{"step", step}, {"loss", t.trainer.evaluate(batches)}});
}

// The micro-batches of the next step.
std::vector<data::Batch> next_batches(const Training& t) {
  std::vector<std::int64_t> indices = t.sampler.next();
  for (std::int64_t& index : indices) index = t.samples.training[static_cast<std::size_t>(index)];
  const auto size = static_cast<std::size_t>(t.options.batch);
  std::vector<data::Batch> batches;
  for (std::size_t begin = 0; begin < indices.size(); begin += size) {
    const std::span<const std::int64_t> mine(indices.data() + begin, size);
    batches.push_back(to_device(t.run.model(), t.samples.dataset->batch(mine)));
  }
  return batches;
}

std::string progress_text(const train::StepResult& step, const base::Json& validation) {
  std::string text = fmt::format("loss {:.4f}  step {:.2f} s", step.loss, step.seconds.total);
  if (validation.empty()) return text;
  return text + fmt::format("  validation {:.4f}", validation.back().at("loss").get<double>());
}

// The steps of one run: trains, measures, and brings losses and digests into `result`.
void train_steps(const Training& t, const std::string& mode, const std::string& label, Meter& meter,
                 RankResult& result) {
  const Options& options = t.options;
  dist::Communicator& world = t.run.mesh().world();
  base::Sha256 gradient_digest;
  watch_first_gradients(t.strategy, gradient_digest);
  std::optional<Progress> progress;
  if (!label.empty()) progress.emplace(label, t.sampler.step(), options.steps);
  std::optional<train::Trace> trace;
  validate(t, result);
  while (t.sampler.step() < options.steps) {
    const std::vector<data::Batch> batches = next_batches(t);
    if (result.losses.empty()) result.batch_digest = digest_of(batches.front().inputs);
    const bool last = t.sampler.step() == options.steps;
    if (!options.trace.empty() && last) trace.emplace(&world);
    const bool of_memory = !options.memory_timeline.empty() && last;
    const bool records_memory = of_memory && world.rank() == 0;
    // A memory timeline is to show a step, and not how long rank 0 waited for the others to begin
    // it.
    if (of_memory) world.barrier();
    if (records_memory) memory::start_timeline(t.strategy.list().bytes() / 4096);
    const train::Costs costs = t.strategy.costs();
    meter.begin_step(costs.sent + (options.micro_batches - 1) * costs.gathered);
    const train::StepResult step = t.trainer.step(batches);
    meter.end_step(step);
    if (records_memory) {
      result.memory_timeline = plots::timeline_of_mode(mode, memory::stop_timeline());
    }
    if (trace) trace->finish(options.trace_file(mode, world.rank()));
    t.strategy.passes().observe_gradients({});
    result.predicted_pipeline_traffic = t.run.pipeline_bytes(batches);
    result.losses.push_back(step.loss);
    result.loss_scale = step.loss_scale;
    result.skipped_steps += step.skipped ? 1 : 0;
    save_if_due(t.strategy, t.trainer, t.sampler, mode, options, *t.samples.dataset);
    validate(t, result);
    if (progress) progress->step(progress_text(step, result.validation));
  }
  result.gradient_digest = gradient_digest.hex();
  t.trainer.zero_grad();
}

std::unique_ptr<train::Trainer> make_trainer(const MeshRun& run, train::Strategy& strategy,
                                             const Options& options) {
  train::StepOptions trainer_options;
  if (!options.resume.empty()) {
    trainer_options.first_step = io::read_checkpoint_info(options.resume).step;
  }
  // Gradients of float16 are often too small for it.
  if (options.dtype == "fp16") trainer_options.loss_scale = train::LossScaleOptions();
  return run.make_trainer(strategy, trainer_options);
}

}  // namespace

RankResult run_rank(dist::Communicator& communicator, const std::string& mode,
                    const Options& options, const std::string& label) {
  const Samples samples = read_samples(options);
  agree_on_everything(communicator, mode, options, *samples.dataset);
  const at::Device device = enter_rank(options);
  const std::int64_t base = memory::snapshot().total;
  const std::int64_t resident_base = memory::resident_set_bytes();

  train::Registry registry;
  train::register_all_chapters(registry);
  const MeshRun run(communicator, options, device);
  std::unique_ptr<nn::ParameterSource> values = run.first_values();
  const bool fake =
      dist::set_fake_source(communicator, train::first_values_of(run.model(), *values));
  const auto strategy = registry.make(
      mode, {run.model(), run.mesh(), optimizer_of(options), values.get(), "",
             train::ownership_from(options.ownership), train::Accumulation::kLocal,
             options.reduce_dtype == "fp32" ? dist::ReduceType::kFloat32 : dist::ReduceType::kOwn});
  const std::unique_ptr<train::Trainer> trainer = make_trainer(run, *strategy, options);

  data::DistributedSampler sampler(std::ssize(samples.training),
                                   options.batch * options.micro_batches * run.mesh().data().size(),
                                   run.mesh().data().rank(), run.mesh().data().size(),
                                   options.seed);
  resume(*strategy, *trainer, sampler, options);
  RankResult result;
  // The other ranks of a fake process group do not train: only what this one updates can change.
  const std::vector<std::string> before =
      fake ? piece_digests(*strategy) : parameter_digests(*strategy);
  Meter meter(run, base, resident_base);
  train_steps({run, *strategy, *trainer, sampler, samples, options}, mode, label, meter, result);
  meter.fill(result.row);
  if (fake) {
    result.every_tensor_changed = every_piece_changed(*strategy, before);
  } else {
    const std::vector<std::string> after = parameter_digests(*strategy);
    result.row.digest = run.model_digest(strategy->list(), after);
    result.every_tensor_changed = all_trainable_changed(*strategy, before, after);
  }
  result.row.formula_mib = mib(strategy->costs().at_rest.total());
  result.predicted_traffic = meter.predicted();
  if (!options.save.empty()) save(*strategy, options, samples.pad_id);
  communicator.barrier();
  return result;
}

std::string to_text(const RankResult& result) {
  base::Json json;
  for_each_field(result, [&](const char* key, const auto& value) { json[key] = value; });
  return json.dump();
}

RankResult from_text(const std::string& text) {
  const base::Json json = base::Json::parse(text);
  RankResult result;
  for_each_field(result, [&](const char* key, auto& value) { json.at(key).get_to(value); });
  return result;
}

}  // namespace zero::ladder
