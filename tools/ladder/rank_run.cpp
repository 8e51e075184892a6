#include "rank_run.hpp"

#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>

#include <05_prefetch_overlap/sharded_data_parallel.hpp>
#include <10_offload/kept_on_host.hpp>
#include <tools/plots/trace.hpp>
#include <tools/support/process.hpp>
#include <zero/base/error.hpp>
#include <zero/base/sha256.hpp>
#include <zero/distributed/agreement.hpp>
#include <zero/io/save_model.hpp>
#include <zero/io/stored_values.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/nn/defer.hpp>
#include <zero/nn/llama.hpp>
#include <zero/optim/adamw.hpp>
#include <zero/optim/master_weights.hpp>
#include <zero/optim/muon.hpp>
#include <zero/optim/optimizer.hpp>
#include <zero/train/unsharded_parameters.hpp>

#include "checkpoints.hpp"
#include "device.hpp"
#include "ladder_report.hpp"
#include "pipeline_trainer.hpp"
#include "samples.hpp"

namespace zero::ladder {
namespace {

using tools::Json;

// SHA-256 of a tensor's bytes, 64 hexadecimal digits.
std::string digest_of(const at::Tensor& tensor) {
  const at::Tensor bytes = tensor.cpu().contiguous();
  return base::Sha256().add(bytes.const_data_ptr(), bytes.nbytes()).hex();
}

// Without the first step, which makes the optimizer's states and warms everything up.
double median(std::vector<double> values) {
  if (values.size() > 1) values.erase(values.begin());
  std::ranges::sort(values);
  return (values[(values.size() - 1) / 2] + values[values.size() / 2]) / 2;
}

// Of so many steps this run has begun after the `first`. On a terminal it is one line, redrawn,
// else a line at every tenth of what this run has to do. Without a label nothing is shown.
void show_progress(const std::string& label, std::int64_t first, std::int64_t done,
                   std::int64_t steps, const std::string& text) {
  const bool terminal = ::isatty(STDERR_FILENO) == 1;
  const auto tenths = [&](std::int64_t at) { return (at - first) * 10 / (steps - first); };
  if (label.empty() || (!terminal && tenths(done) == tenths(done - 1))) return;
  const bool redrawn = terminal && done < steps;
  fmt::print(stderr, "{}{}  {}/{}  {}{}", terminal ? "\r" : "", label, done, steps, text,
             redrawn ? "\x1b[K" : "\n");
}

// What is measured within every step; the last one is reported, times as medians.
// What is alive when it is made does not count.
class Meter {
 public:
  // `data_bytes`, `pipeline_bytes`: what the step must send on these axes, by formula.
  template <typename Step>
  tools::StepResult measure(const dist::Mesh& mesh, std::int64_t data_bytes,
                            std::int64_t pipeline_bytes, const Step& run_step) {
    memory::reset_peaks();
    const dist::Traffic before[] = {mesh.data().traffic(), mesh.pipeline().traffic(),
                                    mesh.tensor().traffic(), mesh.world().traffic()};
    const tools::StepResult step = run_step();
    seconds_.push_back(step.seconds);
    const memory::Snapshot steady = memory::snapshot();
    const std::int64_t resident = tools::resident_set_bytes();
    const dist::Traffic data = mesh.data().traffic().since(before[0]);
    const dist::Traffic pipeline = mesh.pipeline().traffic().since(before[1]);
    const dist::Traffic tensor = mesh.tensor().traffic().since(before[2]);
    const dist::Traffic world = mesh.world().traffic().since(before[3]);
    const std::int64_t gradients = data.bytes(dist::Purpose::kGradient),
                       parameters = data.bytes(dist::Purpose::kParameter),
                       control = world.bytes(dist::Purpose::kControl);
    row_ = {
        {"rank", mesh.world().rank()},
        {"parameter_mib", mib(steady[memory::Category::kParameters])},
        {"gradient_mib", mib(steady[memory::Category::kGradients])},
        {"optimizer_mib", mib(steady[memory::Category::kOptimizer])},
        {"other_mib", mib(steady.total - base_ - steady.model_states())},
        {"total_mib", mib(steady.total - base_)},
        {"peak_mib", mib(steady.total_peak - base_)},
        {"peak_states_mib", mib(steady.states_peak)},
        {"resident_growth_mib", mib(resident - resident_base_)},
        {"sent_gradient_bytes", gradients},
        {"sent_parameter_bytes", parameters},
        {"sent_control_bytes", control},
        {"sent_bytes", gradients + parameters + control},
        {"sent_data_bytes", without_control(data)},
        {"sent_pipeline_bytes", without_control(pipeline)},
        {"sent_tensor_bytes", without_control(tensor)},
        {"sent_between_hosts_bytes", world.between_hosts()},
        {"formula_data_bytes", data_bytes},
        {"formula_pipeline_bytes", pipeline_bytes},
    };
    return step;
  }

  Json row() const {
    Json row = row_;
    row["high_water_mib"] = mib(tools::resident_set_peak_bytes());
    using tools::PhaseSeconds;
    for (const auto& [key, phase] : {std::pair{"step_seconds", &PhaseSeconds::total},
                                     {"forward_seconds", &PhaseSeconds::forward},
                                     {"backward_seconds", &PhaseSeconds::backward},
                                     {"communication_seconds", &PhaseSeconds::communication},
                                     {"in_flight_seconds", &PhaseSeconds::in_flight},
                                     {"optimizer_seconds", &PhaseSeconds::optimizer}}) {
      std::vector<double> values;
      for (const PhaseSeconds& seconds : seconds_) values.push_back(seconds.*phase);
      row[key] = median(std::move(values));
    }
    return row;
  }

 private:
  static std::int64_t without_control(const dist::Traffic& traffic) {
    return traffic.bytes() - traffic.bytes(dist::Purpose::kControl);
  }

  std::int64_t base_ = memory::snapshot().total;
  std::int64_t resident_base_ = tools::resident_set_bytes();
  std::vector<tools::PhaseSeconds> seconds_;
  Json row_;
};

// As lines, of which an error shows the first that differs. Saving and recording use collectives,
// so all ranks do both or neither; each rank may have a path of its own.
void agree_on_everything(dist::Communicator& communicator, const std::string& mode,
                         const Options& o, const data::Dataset& dataset) {
  Json run = report_head(o);
  run["mode"] = mode;
  run["time limit"] = o.timeout_seconds;
  run["model's config"] = o.weights_config;
  run["learning rate"] = o.learning_rate;
  run["seed"] = o.seed;
  run["--checkpoint"] = !o.checkpoint.folder.empty();
  run["--checkpoint-every"] = o.checkpoint.every;
  run["begins"] = o.checkpoint.resume.empty() ? "from the start" : "from a checkpoint";
  run["--save"] = !o.save.empty();
  run["--trace"] = !o.trace.empty();
  const std::string data = dataset.fingerprint();
  run["data (tokens and tokenizer)"] = data;
  std::string lines;
  for (const auto& [key, value] : run.items()) lines += fmt::format("{} {}\n", key, value.dump());
  dist::verify_same(communicator, "the run", lines);
  if (data != o.data_fingerprint) {
    throw Error(
        "the data has changed since the run began, so its modes cannot be compared: begin again "
        "(without --data it is the *.md of this project)");
  }
}

std::shared_ptr<nn::Llama> whole_model(const Options& options,
                                       const nn::TensorParallel& tensor = {}) {
  return nn::defer([&] { return std::make_shared<nn::Llama>(options.config(), tensor); });
}

// The folder has the whole model, whatever part of it a rank takes.
std::unique_ptr<io::StoredValues> stored_values(const Options& options) {
  return std::make_unique<io::StoredValues>(
      options.weights, nn::list_parameters(*whole_model(options)),
      io::llama_values_options(options.config(), options.seed));
}

dist::Mesh mesh_of(dist::Communicator& world, const MeshOptions& options) {
  std::vector<dist::Mesh::Axis> axes = {{"data", dist::Mesh::kRest}};
  if (options.stages > 1) axes.push_back({"pipeline", options.stages});
  if (options.tensor_ranks > 1) axes.push_back({"tensor", options.tensor_ranks});
  return {world, std::move(axes)};
}

// With fp32 master weights if parameters have 2 bytes.
optim::OptimizerFactory optimizer_of(const Options& options, const torch::nn::Module& model) {
  const double rate = options.learning_rate;
  const auto make = options.optimizer == "muon"
                        ? optim::muon(model, {.learning_rate = rate}, {.learning_rate = rate})
                        : optim::adamw({.learning_rate = rate});
  return options.mixed() ? optim::with_master_weights(make) : make;
}

// One rank under one mode: its place in the mesh, its part of the model there, and its training.
class RankRun {
 public:
  RankRun(dist::Communicator& world, const std::string& mode, const Options& options,
          const Samples& samples)
      : world_(world),
        mode_(mode),
        options_(options),
        samples_(samples),
        device_(options.device == "cpu" ? at::Device(at::kCPU) : enter_gpu()),
        mesh_(mesh_of(world, options.mesh)),
        sampler_(samples.dataset->size(),
                 options.batch * options.micro_batches * mesh_.data().size(), mesh_.data().rank(),
                 mesh_.data().size(), options.seed) {
    make_model();
    values_ = first_values();
    strategy_ = all_modes().make(mode, {.module = *model_,
                                        .mesh = mesh_,
                                        .optimizer = optimizer_of(options, *model_),
                                        .values = values_.get()});
    trainer_ = make_trainer();
    if (!options.checkpoint.resume.empty()) resume();
  }

  Json train(const std::string& label) {
    const std::vector<std::string> before = digests();
    train_steps(label);
    Json row = meter_.row();
    const std::vector<std::string> after = digests();
    row["digest"] = fake_ ? "" : model_digest(after);
    row["formula_mib"] = mib(strategy_->costs().at_rest.total());
    result_["row"] = std::move(row);
    result_["every_tensor_changed"] = all_changed(before, after);
    if (!options_.save.empty()) save();
    world_.barrier();
    return std::move(result_);
  }

 private:
  // Without bytes, on the device.
  void make_model() {
    const MeshOptions& mesh = options_.mesh;
    const nn::TensorParallel tensor(mesh_.tensor(), mesh.sequence_parallel);
    const nn::CheckpointOptions kept{
        .partition_over = mesh.partition_activations ? &mesh_.tensor() : nullptr,
        .keep = options_.activations_on_host ? keep_on_host : nullptr};
    const auto take = [&](const auto& model) {
      model->checkpoint_activations(options_.activation_checkpointing, kept);
      to_device(device_, *model);
      model_ = model;
    };
    if (mesh.stages == 1) {
      take(llama_ = whole_model(options_, tensor));
    } else {
      take(stage_ = std::make_shared<LlamaStage>(options_.config(), mesh_.pipeline().rank(),
                                                 mesh.stages, tensor));
    }
  }

  // Only rank 0 of each data axis opens the folder of the weights, because only it is asked.
  std::unique_ptr<nn::ParameterSource> first_values() const {
    if (!options_.weights.empty() && mesh_.data().rank() == 0) return stored_values(options_);
    return std::make_unique<nn::SeededValues>(options_.seed);
  }

  std::unique_ptr<tools::Trainer> make_trainer() {
    train::StepOptions step;
    const std::string& resume = options_.checkpoint.resume;
    if (!resume.empty()) step.first_step = io::read_checkpoint_info(resume).step;
    if (stage_ == nullptr) {
      return std::make_unique<tools::Trainer>(*strategy_, tools::losses_of(*llama_), step);
    }
    return std::make_unique<tools::PipelineTrainer>(*stage_, *strategy_,
                                                    PipelineSchedule::kOneForwardOneBackward, step);
  }

  // One for each parameter, made whole for the moment, over the data and the tensor axis: unit by
  // unit, so that checking does not need more memory than training. The other ranks of a fake
  // process group do not train: there, one for each piece that this rank updates, and nothing for
  // others. Called by all ranks.
  std::vector<std::string> digests() {
    const nn::ParameterList& list = strategy_->list();
    std::vector<std::string> digests(list.size());
    for (std::size_t u = 0; u < list.units.size(); ++u) {
      std::optional<train::UnshardedParameters> whole;
      if (!fake_) whole.emplace(*strategy_, u);
      for (const std::size_t i : list.units[u].parameters) {
        const nn::Parameter& p = list.parameters[i];
        const at::Tensor tensor = fake_ ? strategy_->placement(i).updated.tensor
                                        : p.placement.whole_of(p.tensor.detach());
        if (tensor.defined() && tensor.numel() > 0) digests[i] = digest_of(tensor.detach());
      }
    }
    return digests;
  }

  // Of the whole model, from those of its parameters here and in other stages.
  std::string model_digest(const std::vector<std::string>& digests) const {
    const train::StageOfModel& stage = strategy_->stage_of_model();
    std::vector<std::string> whole(stage.whole().size());
    for (std::size_t i = 0; i < digests.size(); ++i) whole[stage.place(i)] = digests[i];
    for (const std::string& text : mesh_.pipeline().exchange(Json(whole).dump())) {
      const auto theirs = Json::parse(text).get<std::vector<std::string>>();
      for (std::size_t i = 0; i < whole.size(); ++i) {
        if (whole[i].empty()) whole[i] = theirs[i];
        if (theirs[i].empty() || theirs[i] == whole[i]) continue;
        throw Error(fmt::format("two stages of the pipeline have different values of '{}'",
                                stage.whole().parameters[i].name));
      }
    }
    base::Sha256 model;
    for (const std::string& digest : whole) model.add(digest);
    return model.hex();
  }

  // An update that is too small for a parameter of 2 bytes to show is in the master weight alone.
  bool master_differs(std::size_t index) {
    const at::Tensor mine = strategy_->placement(index).updated.tensor;
    if (!mine.defined()) return false;
    strategy_->verify_weights();
    const auto states = strategy_->optimizer().state(mine);
    const auto master = states.find("master");
    return master != states.end() &&
           !at::equal(master->second, mine.detach().flatten().to(master->second.options()));
  }

  // Whether training changed every trainable parameter, on a fake rank every piece that it updates,
  // whose digests were `before` and are `after`. A change in the master weight alone counts. Called
  // by all ranks; the same answer on all of a data axis.
  bool all_changed(const std::vector<std::string>& before, const std::vector<std::string>& after) {
    const at::Tensor changed = at::zeros({static_cast<std::int64_t>(before.size())}, at::kInt);
    auto* flag = changed.mutable_data_ptr<std::int32_t>();
    for (std::size_t i = 0; i < before.size(); ++i) {
      const bool trains = strategy_->list().parameters[i].tensor.requires_grad();
      flag[i] = !trains || after[i].empty() || before[i] != after[i] || master_differs(i) ? 1 : 0;
    }
    // A master weight is known to its owner only.
    mesh_.data().all_reduce(changed, dist::Purpose::kControl, dist::ReduceOp::kSum).wait();
    return std::all_of(flag, flag + before.size(), [](std::int32_t ranks) { return ranks > 0; });
  }

  void resume() {
    const io::CheckpointInfo saved = io::load_checkpoint(*strategy_, options_.checkpoint.resume);
    try {
      resume_position(saved, samples_.dataset->fingerprint(), sampler_);
    } catch (const Error& error) {
      throw Error(fmt::format("--resume {}: {}", options_.checkpoint.resume, error.what()));
    }
    if (saved.step == trainer_->steps()) return;
    throw Error(fmt::format("--resume {}: another checkpoint took its place meanwhile",
                            options_.checkpoint.resume));
  }

  // If the step that has just ended is the last, or a multiple of --checkpoint-every.
  void save_checkpoint_if_due() {
    const std::string& folder = options_.checkpoint.folder;
    const std::int64_t every = options_.checkpoint.every;
    const std::int64_t step = sampler_.step();
    const bool due = step == options_.steps || (every > 0 && step % every == 0);
    if (folder.empty() || !due) return;
    io::CheckpointInfo info;
    write_position(sampler_, info);
    info.mode = mode_;
    info.notes[kDataNote] = samples_.dataset->fingerprint();
    io::save_checkpoint(*strategy_, folder, info);
  }

  // The micro-batches of the next step.
  std::vector<data::Batch> next_batches() {
    const std::vector<std::int64_t> indices = sampler_.next();
    const auto size = static_cast<std::size_t>(options_.batch);
    std::vector<data::Batch> batches;
    for (std::size_t begin = 0; begin < indices.size(); begin += size) {
      const auto mine = std::span(indices).subspan(begin, size);
      batches.push_back(to_device(device_, samples_.dataset->batch(mine)));
    }
    return batches;
  }

  tools::StepResult measured_step(const std::vector<data::Batch>& batches) {
    const train::Costs costs = strategy_->costs();
    return meter_.measure(
        mesh_, costs.sent + (options_.micro_batches - 1) * costs.gathered,
        stage_ == nullptr ? 0 : pipeline_bytes(*stage_, tools::micro_batches_of(batches)),
        [&] { return trainer_->step(batches); });
  }

  tools::StepResult last_step(const std::vector<data::Batch>& batches) {
    if (options_.trace.empty()) return measured_step(batches);
    plots::Trace trace(&world_, device_);
    const tools::StepResult step = measured_step(batches);
    trace.finish(options_.trace_file(mode_, world_.rank()));
    return step;
  }

  void train_steps(const std::string& label) {
    // Of the small parameters: enough to see that ranks differ, too little to cost time.
    base::Sha256 first_gradients;
    strategy_->passes().observe_gradients([&](std::size_t, const at::Tensor& gradient) {
      if (gradient.numel() >= (1 << 16)) return;
      strategy_->communicator().synchronize();  // the host is about to read
      first_gradients.add(digest_of(gradient));
    });
    const std::int64_t first = sampler_.step();
    while (sampler_.step() < options_.steps) {
      const std::vector<data::Batch> batches = next_batches();
      if (result_["losses"].empty()) result_["batch_digest"] = digest_of(batches.front().inputs);
      const tools::StepResult step =
          sampler_.step() == options_.steps ? last_step(batches) : measured_step(batches);
      strategy_->passes().observe_gradients({});
      result_["losses"].push_back(step.loss);
      save_checkpoint_if_due();
      show_progress(label, first, sampler_.step(), options_.steps,
                    fmt::format("loss {:.4f}  step {:.2f} s", step.loss, step.seconds.total));
    }
    result_["gradient_digest"] = first_gradients.hex();
    trainer_->zero_grad();
  }

  void save() {
    const nn::LlamaConfig config = options_.config();
    nlohmann::json json = options_.weights.empty()
                              ? nn::to_hugging_face_json(config)
                              : nn::to_hugging_face_json(config, options_.weights_config);
    // transformers finds the last token of a review by what is not padding.
    if (config.classes > 0) json["pad_token_id"] = 0;
    io::save_model(*strategy_, json, options_.save);
  }

  dist::Communicator& world_;
  const std::string& mode_;
  const Options& options_;
  const Samples& samples_;
  const at::Device device_;
  Meter meter_;
  const dist::Mesh mesh_;
  std::shared_ptr<nn::Llama> llama_;   // null: more than one stage
  std::shared_ptr<LlamaStage> stage_;  // null: one stage
  std::shared_ptr<torch::nn::Module> model_;
  std::unique_ptr<nn::ParameterSource> values_;
  const bool fake_ = options_.fake.size > 0;
  std::unique_ptr<train::Strategy> strategy_;
  std::unique_ptr<tools::Trainer> trainer_;
  data::DistributedSampler sampler_;
  Json result_ = {{"losses", Json::array()}};
};

}  // namespace

Json run_rank(dist::Communicator& communicator, const std::string& mode, const Options& options,
              const std::string& label) {
  const Samples samples = read_samples(options);
  agree_on_everything(communicator, mode, options, *samples.dataset);
  return RankRun(communicator, mode, options, samples).train(label);
}

std::string describe_weights(const Options& options) { return stored_values(options)->describe(); }

}  // namespace zero::ladder
