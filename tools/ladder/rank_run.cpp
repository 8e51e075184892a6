#include "rank_run.hpp"

#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
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
#include <zero/train/unsharded_parameters.hpp>

#include "checkpoints.hpp"
#include "device.hpp"
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
  take("losses", result.losses);
  take("validation", result.validation);
  take("loss_scale", result.loss_scale);
  take("skipped_steps", result.skipped_steps);
  take("every_tensor_changed", result.every_tensor_changed);
  take("batch_digest", result.batch_digest);
  take("gradient_digest", result.gradient_digest);
  take("parameters", result.parameters);
  take("parameter_bytes", result.parameter_bytes);
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

// One digest per parameter, each made whole for the moment: unit by unit, so that checking does
// not need more memory than training. Called by all ranks.
std::vector<std::string> parameter_digests(train::Strategy& strategy) {
  const nn::ParameterList& list = strategy.list();
  std::vector<std::string> digests(list.size());
  for (std::size_t u = 0; u < list.units.size(); ++u) {
    const train::UnshardedParameters whole(strategy, u);
    for (const std::size_t i : list.units[u].parameters) {
      digests[i] = digest_of(list.parameters[i].tensor.detach());
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

// Whether training changed every piece that this rank updates, whose digests were `before`. A
// change in the master weight alone counts.
bool every_piece_changed(train::Strategy& strategy, const std::vector<std::string>& before) {
  const std::vector<std::string> after = piece_digests(strategy);
  for (std::size_t i = 0; i < after.size(); ++i) {
    if (!after[i].empty() && after[i] == before[i] && !master_differs(strategy, i)) return false;
  }
  return true;
}

// One digest for several.
std::string combine(const std::vector<std::string>& digests) {
  base::Sha256 all;
  for (const std::string& digest : digests) all.add(digest);
  return all.hex();
}

// Whether training changed every trainable parameter, whose digests were `before` and are `after`.
// A change in the master weight alone counts. Called by all ranks; the same answer on all.
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

  void fill(RankRow& row) const {
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
  strategy.passes().observe_gradients([&digest](std::size_t, const at::Tensor& gradient) {
    if (gradient.numel() >= (1 << 16)) return;
    const at::Tensor bytes = gradient.cpu().contiguous();
    digest.add(bytes.const_data_ptr(), bytes.nbytes());
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
                  "gradients added as {}\nactivation checkpointing: {}\n"
                  "validation by {} of the samples\n"
                  "checkpoints {}\na run {}\n{}\n{}\n{}\na time limit of {} s\n"
                  "data (tokens and tokenizer) {}",
                  mode, o.task, o.model_name(), nlohmann::json(o.weights_config).dump(), o.batch,
                  o.sequence_length, o.steps, o.learning_rate, o.seed, o.ownership, o.dtype,
                  o.reduce_dtype, o.activation_checkpointing, o.validation, when_kept(o),
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

// Evaluates what is held out, if anything is: before the first step of this run, after the last and
// where an epoch ends or a checkpoint was due. Batches are about as large as a step's, none empty.
void validate(train::Strategy& strategy, train::Trainer& trainer,
              const data::DistributedSampler& sampler, const Samples& samples,
              const Options& options, RankResult& result) {
  const std::int64_t step = sampler.step(), size = std::ssize(samples.validation);
  const std::int64_t every =
      options.checkpoint_every > 0 ? options.checkpoint_every : sampler.steps_per_epoch();
  const bool due = result.losses.empty() || step == options.steps || step % every == 0;
  if (size == 0 || !due) return;
  const int ranks = strategy.communicator().size();
  const auto rounds = std::max<std::int64_t>(1, size / (options.batch * ranks));
  const int pieces = ranks * static_cast<int>(rounds);
  std::vector<data::Batch> batches;
  for (int piece = strategy.communicator().rank(); piece < pieces; piece += ranks) {
    const auto [begin, end] = data::rank_slice(size, piece, pieces);
    const auto first = samples.validation.begin();
    const std::vector<std::int64_t> mine(first + begin, first + end);
    batches.push_back(to_device(strategy.model(), samples.dataset->batch(mine)));
  }
  result.validation.push_back(base::Json{{"step", step}, {"loss", trainer.evaluate(batches)}});
}

std::string progress_text(const train::StepResult& step, const base::Json& validation) {
  std::string text = fmt::format("loss {:.4f}  step {:.2f} s", step.loss, step.seconds.total);
  if (validation.empty()) return text;
  return text + fmt::format("  validation {:.4f}", validation.back().at("loss").get<double>());
}

// The steps of one run: trains, measures, and brings losses and digests into `result`.
void train_steps(train::Strategy& strategy, data::DistributedSampler& sampler,
                 const Samples& samples, const std::string& mode, const Options& options,
                 const std::string& label, Meter& meter, RankResult& result) {
  dist::Communicator& communicator = strategy.communicator();
  base::Sha256 gradient_digest;
  watch_first_gradients(strategy, gradient_digest);
  train::TrainerOptions trainer_options;
  trainer_options.first_step = sampler.step();
  // Gradients of float16 are often too small for it.
  if (options.dtype == "fp16") trainer_options.loss_scale = train::LossScaleOptions();
  train::Trainer trainer(strategy, trainer_options);
  put_back_loss_scale(trainer, options);
  std::optional<Progress> progress;
  if (!label.empty()) progress.emplace(label, sampler.step(), options.steps);
  std::optional<train::Trace> trace;
  validate(strategy, trainer, sampler, samples, options, result);
  while (sampler.step() < options.steps) {
    std::vector<std::int64_t> indices = sampler.next();
    for (std::int64_t& index : indices) index = samples.training[static_cast<std::size_t>(index)];
    const data::Batch batch = to_device(strategy.model(), samples.dataset->batch(indices));
    if (result.losses.empty()) result.batch_digest = digest_of(batch.inputs);
    const bool last = sampler.step() == options.steps;
    if (!options.trace.empty() && last) trace.emplace(&communicator);
    const bool of_memory = !options.memory_timeline.empty() && last;
    const bool records_memory = of_memory && communicator.rank() == 0;
    // A memory timeline is to show a step, and not how long rank 0 waited for the others to begin
    // it.
    if (of_memory) communicator.barrier();
    if (records_memory) memory::start_timeline(strategy.list().bytes() / 4096);
    meter.begin_step();
    const train::StepResult step = trainer.step({batch});
    meter.end_step(step);
    if (records_memory) {
      result.memory_timeline = plots::timeline_of_mode(mode, memory::stop_timeline());
    }
    if (trace) trace->finish(options.trace_file(mode, communicator.rank()));
    strategy.passes().observe_gradients({});
    result.losses.push_back(step.loss);
    result.loss_scale = step.loss_scale;
    result.skipped_steps += step.skipped ? 1 : 0;
    keep(strategy, trainer, sampler, mode, options, *samples.dataset);
    validate(strategy, trainer, sampler, samples, options, result);
    if (progress) progress->step(progress_text(step, result.validation));
  }
  result.gradient_digest = gradient_digest.hex();
  trainer.zero_grad();
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
  const std::shared_ptr<nn::Llama> model = model_without_storage(options);
  to_device(device, *model);
  model->checkpoint_activations(options.activation_checkpointing);
  std::unique_ptr<nn::ParameterSource> values = first_values(communicator, options, *model);
  auto* const fake = dynamic_cast<dist::FakeCommunicator*>(&communicator);
  if (fake != nullptr) fake->set_source(train::first_values_of(*model, *values));
  const auto strategy = registry.make(
      mode, {*model, communicator, optimizer_of(options), values.get(), "",
             train::ownership_from(options.ownership), train::Accumulation::kLocal,
             options.reduce_dtype == "fp32" ? dist::ReduceType::kFloat32 : dist::ReduceType::kOwn});

  data::DistributedSampler sampler(std::ssize(samples.training),
                                   options.batch * communicator.size(), communicator.rank(),
                                   communicator.size(), options.seed);
  resume(*strategy, sampler, options);
  RankResult result;
  // The other ranks of a fake process group learn nothing: only what this one updates can change.
  const std::vector<std::string> before =
      fake != nullptr ? piece_digests(*strategy) : parameter_digests(*strategy);
  Meter meter(communicator, base, resident_base);
  train_steps(*strategy, sampler, samples, mode, options, label, meter, result);
  meter.fill(result.row);
  if (fake != nullptr) {
    result.every_tensor_changed = every_piece_changed(*strategy, before);
  } else {
    const std::vector<std::string> after = parameter_digests(*strategy);
    result.row.digest = combine(after);
    result.every_tensor_changed = all_trainable_changed(*strategy, before, after);
  }
  result.row.formula_mib = mib(strategy->costs().at_rest.total());
  result.predicted_traffic = strategy->costs().sent;
  result.parameters = strategy->list().numel();
  result.parameter_bytes = strategy->list().bytes();
  if (!options.save.empty()) save(*strategy, options, samples.pad_id);
  communicator.barrier();
  return result;
}

std::string describe_weights(const Options& options) {
  return stored_values(options, *model_without_storage(options))->describe();
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
