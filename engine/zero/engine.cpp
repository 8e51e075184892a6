#include <ATen/autocast_mode.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>
#include <optional>
#include <utility>

#include <zero/base/error.hpp>
#include <zero/base/kept_error.hpp>
#include <zero/base/names.hpp>
#include <zero/base/program.hpp>
#include <zero/base/scoped.hpp>
#include <zero/distributed/agreement.hpp>
#include <zero/engine.hpp>
#include <zero/io/checkpoint.hpp>
#include <zero/io/checkpoint_files.hpp>
#include <zero/io/state_dict.hpp>
#include <zero/train/broadcast_buffers.hpp>

namespace zero {

namespace {

constexpr const char* kPosition = "position";  // among the notes of a checkpoint

std::unique_ptr<train::Strategy> strategy_of(train::StrategyArguments arguments,
                                             const EngineConfig& config) {
  const dist::CallScope call(arguments.mesh.world(), "Engine::Engine");
  if (arguments.mesh.pipeline().size() > 1) {
    throw Error(fmt::format(
        "an engine on a mesh of {}: its backward() waits for the stages of all ranks, and a stage "
        "waits for the gradient of the next one; take make_strategy() with the configuration, and "
        "PipelinePasses (09_pipeline), which has the schedule of a step",
        arguments.mesh.text()));
  }
  return make_strategy(std::move(arguments), config);
}

train::StepOptions step_options(const EngineConfig& config) {
  if (config.accumulation_steps < 1) {
    throw Error(
        fmt::format("a step of {} micro-batches; 1 is the least", config.accumulation_steps));
  }
  if (!std::isfinite(config.clip_norm) || config.clip_norm < 0) {
    throw Error(
        fmt::format("clip_norm is {}; it must be a norm, or 0 for no clipping", config.clip_norm));
  }
  train::StepOptions options{.clip_norm = config.clip_norm,
                             .on_nonfinite_gradient = config.on_nonfinite_gradient};
  if (config.loss_scale.initial != 0) options.loss_scale = config.loss_scale;
  return options;
}

// bfloat16 has 8 bits: a sum that is 2^8 times a term does not change by adding it.
void note_short_sums(const train::Strategy& strategy, std::int64_t micro_batches) {
  constexpr std::int64_t kMany = 64;
  const auto is_short = [](const nn::Parameter& p) {
    return p.tensor.requires_grad() && p.tensor.scalar_type() == at::kBFloat16;
  };
  const auto found = std::ranges::find_if(strategy.list().parameters, is_short);
  if (micro_batches < kMany || found == strategy.list().parameters.end()) return;
  if (strategy.mesh().world().rank() != 0) return;
  log_error(
      fmt::format("note: gradients of {} micro-batches are added up in bfloat16, as '{}' is; such "
                  "a sum stops growing at 256 equal terms",
                  micro_batches, found->name));
}

// A checkpoint restores no hyperparameters, so that a run may go on with others. But those of a
// scheduler that begins anew are others by mistake.
void note_other_settings(const optim::Optimizer::Settings& saved,
                         const optim::Optimizer::Settings& mine) {
  std::string others;
  for (std::size_t g = 0; g < std::min(saved.groups.size(), mine.groups.size()); ++g) {
    for (const auto& [name, value] : saved.groups[g]) {
      const auto now = mine.groups[g].find(name);
      if (now == mine.groups[g].end() || now->second == value) continue;
      others += fmt::format("{} {} of group {} (now {}), ", name, value, g, now->second);
    }
  }
  if (saved.groups.size() != mine.groups.size()) {
    others += fmt::format("{} groups (now {}), ", saved.groups.size(), mine.groups.size());
  }
  if (others.empty()) return;
  log_error(
      fmt::format("note: the checkpoint was saved with {}and load() leaves those of this run: "
                  "set what should go on, such as the rate of a scheduler",
                  others));
}

}  // namespace

Engine::Engine(torch::nn::Module& module, const dist::Mesh& mesh, optim::OptimizerFactory optimizer,
               const EngineConfig& config, const nn::UnitRule& units, nn::ParameterSource* values)
    : config_(config),
      kept_(module.weak_from_this().lock()),
      strategy_(strategy_of(
          {.module = module,
           .mesh = mesh,
           .optimizer = std::move(optimizer),
           .values = values,
           .accumulation = config.reduce_each_micro_batch ? train::Accumulation::kReduceEach
                                                          : train::Accumulation::kLocal,
           .reduce_type =
               config.reduce_in_float32 ? dist::ReduceType::kFloat32 : dist::ReduceType::kOwn,
           .ignored = config.ignored,
           .units = units},
          config)),
      step_(*strategy_, step_options(config), "Engine::Engine",
            fmt::format("{} micro-batches\nbuffers {}", config.accumulation_steps,
                        config.broadcast_buffers ? "of rank 0" : "of each rank")),
      gradients_(strategy_->list()),
      checks_(*strategy_, gradients_) {
  note_short_sums(*strategy_, config.accumulation_steps);
}

Engine::~Engine() {
  if (std::uncaught_exceptions() > 0) return;
  // First: other ranks may wait for reductions.
  try {
    if (backward_threw_) give_up_step();
  } catch (const std::exception&) {  // the strategy says what it waits for in vain
  }
  try {
    if (pending_) finish_save();
  } catch (const std::exception& error) {
    log_loss(fmt::format("rank {}: the checkpoint that was written behind is lost: {}",
                         strategy_->mesh().world().rank(), message_of(error)));
  }
}

at::Tensor Engine::forward(const std::function<at::Tensor()>& loss,
                           std::optional<std::int64_t> loss_terms) {
  const dist::CallScope call(strategy_->mesh().world(), "Engine::forward");
  verify_backward_ended();
  verify_outside_of_passes("forward");
  if (loss_terms && *loss_terms < 0) {
    throw Error(fmt::format("a batch with {} loss terms: give their number, or 0 if it has none",
                            *loss_terms));
  }
  begin_forward();
  return strategy_->forward(loss, loss_terms);
}

void Engine::begin_forward() {
  strategy_->mesh().world().set_step(step_.number());
  // A copy of a weight from an earlier forward would hide that its unit is read, and after an
  // update be old.
  const at::Device device = strategy_->list().parameters.front().tensor.device();
  if (at::autocast::is_autocast_enabled(device.type())) at::autocast::clear_cache();
  if (!config_.broadcast_buffers || !c10::GradMode::is_enabled()) return;
  train::broadcast_buffers(strategy_->module(), strategy_->communicator(),
                           dist::Purpose::kParameter);
}

at::Tensor Engine::evaluate(const std::function<at::Tensor()>& predict) {
  const at::NoGradGuard no_grad;
  const dist::CallScope call(strategy_->mesh().world(), "Engine::evaluate");
  verify_backward_ended();
  verify_outside_of_passes("evaluate");
  begin_forward();
  return strategy_->forward(predict);
}

void Engine::on_step(StepCallback callback) {
  const dist::CallScope call(strategy_->mesh().world(), "Engine::on_step");
  verify_in_no_step("on_step");
  const bool measures = callback != nullptr;
  dist::verify_same(strategy_->mesh().world(), "on_step()",
                    measures ? "a callback" : "no callback");
  step_.measure_norm(measures);
  meter_ = measures ? std::make_shared<StepMeter>(*strategy_, std::move(callback)) : nullptr;
}

void Engine::on_gradients(GradientCallback callback) {
  const dist::CallScope call(strategy_->mesh().world(), "Engine::on_gradients");
  verify_in_no_step("on_gradients");
  if (callback) verify_has_gradients();
  dist::verify_same(strategy_->mesh().world(), "on_gradients()",
                    callback ? "a callback" : "no callback");
  on_gradients_ = std::move(callback);
}

void Engine::verify_has_gradients() const {
  if (!strategy_->optimizer().is_offloaded()) return;
  throw Error(
      "gradients are not to be had with an offloaded optimizer, which takes them while backward() "
      "runs: leave out the options offload and offload_parameters");
}

at::Tensor Engine::gradient(const std::string& name) {
  const dist::CallScope call(strategy_->mesh().world(), "Engine::gradient", name);
  verify_backward_ended();
  verify_outside_of_passes("gradient");
  verify_has_gradients();
  if (micro_batches_ < config_.accumulation_steps) {
    throw Error(fmt::format(
        "gradient('{}') after {} of {} micro-batches: there is an average between the last "
        "backward() of a step and its step()",
        name, micro_batches_, config_.accumulation_steps));
  }
  return gradients_.whole(*strategy_, name).div_(loss_scale());
}

std::string Engine::units() const {
  const nn::ParameterList& list = strategy_->list();
  const auto name = [](const nn::UnitInfo& u) { return u.name.empty() ? "(the root)" : u.name; };
  std::size_t width = 0;
  for (const nn::UnitInfo& unit : list.units) width = std::max(width, name(unit).size());
  std::string table = fmt::format("{:{}}  parameters            bytes\n", "unit", width);
  for (const nn::UnitInfo& unit : list.units) {
    std::int64_t bytes = 0;
    for (const std::size_t i : unit.parameters) bytes += list.parameters[i].bytes();
    table += fmt::format("{:{}}  {:10}  {:>15}\n", name(unit), width, unit.parameters.size(),
                         base::with_thousands(bytes));
  }
  return table;
}

void Engine::backward(const at::Tensor& loss) {
  const dist::CallScope call(strategy_->mesh().world(), "Engine::backward");
  verify_backward_ended();
  verify_outside_of_passes("backward");
  if (in_callback_) throw Error("backward() in the callback of on_step(), which is part of step()");
  if (micro_batches_ == config_.accumulation_steps) {
    throw Error(
        fmt::format("backward() number {} of a step of {} micro-batches (accumulation_steps): call "
                    "step() first; two losses of one forward() take one backward() of their sum, "
                    "backward(main + aux)",
                    micro_batches_ + 1, config_.accumulation_steps));
  }
  const dist::Statement found = checks_.before_backward(loss);
  auto known = std::optional<double>(0);
  if (found.problem.empty()) known = strategy_->passes().forwards().loss_terms(loss);
  const Terms terms = with_micro_batch(known, found);
  const double mine = terms.stated ? known.value() : 1;
  checks_.begin_step();
  const bool is_last = micro_batches_ + 1 == config_.accumulation_steps;
  backward_threw_ = true;  // unless all that follows ends
  gradients_.show();
  // Any number does before the first one that has terms: until then nothing counts.
  const double expected =
      terms.of_first > 0 ? terms.of_first * static_cast<double>(config_.accumulation_steps) : 1;
  const bool program_may_look =
      is_last && strategy_->placements().group == nullptr && !step_.loss_scale();
  // Which one is the last is decided here and not in forward(), by the order of backward().
  step_.backward(step_.weighted(loss, mine, expected), is_last, program_may_look);
  // The gradients so far were weighted relative to the terms of the first one that has any.
  if (is_last && expected != terms.all) {
    strategy_->averaged_gradients().multiply(expected / terms.all);
  }
  if (is_last && on_gradients_) gradients_.call(*strategy_, on_gradients_);
  program_may_look ? gradients_.watch() : gradients_.hide();
  losses_.push_back(loss.detach().reshape({}));
  loss_terms_.push_back(mine);
  terms_ = terms;
  ++micro_batches_;
  stepped_ = false;
  backward_threw_ = false;
}

// What ranks tell each other before a backward. `mine`: the loss terms of this rank's micro-batch,
// if it says them. Returns those of all ranks.
std::vector<std::optional<double>> Engine::exchange(std::optional<double> mine,
                                                    dist::Statement found) {
  constexpr double kUnknown = -1;  // in the message
  const std::string of_batch =
      mine ? fmt::format("one of {} loss terms", *mine) : "one without a number of loss terms";
  found.topics.push_back(
      {"the micro-batch, which ranks of one tensor or pipeline axis share", of_batch, {"data"}});
  found.numbers = {mine.value_or(kUnknown)};
  std::vector<std::optional<double>> terms;
  for (const auto& of_rank : dist::exchange(strategy_->mesh(), found)) {
    const double theirs = of_rank.front();
    terms.push_back(theirs == kUnknown ? std::nullopt : std::optional(theirs));
  }
  return terms;
}

Engine::Terms Engine::with_micro_batch(std::optional<double> mine, const dist::Statement& found) {
  const dist::Mesh& mesh = strategy_->mesh();
  const std::vector<std::optional<double>> all = exchange(mine, found);
  std::vector<int> silent, speak;  // whether they say how many terms theirs has
  double sum = 0;
  for (int rank = 0; rank < mesh.world().size(); ++rank) {
    const std::optional<double> theirs = all[static_cast<std::size_t>(rank)];
    (theirs ? speak : silent).push_back(mesh.world().world_rank(rank));
    if (mesh.shares(rank, {"pipeline", "tensor"})) sum += theirs.value_or(0);
  }
  Terms terms = terms_;
  if (micro_batches_ == 0) terms = {.of_first = 0, .all = 0, .stated = !speak.empty()};
  if (!terms.stated && !speak.empty()) {
    throw Error(fmt::format(
        "micro-batch {} of the step has loss terms on {} (loss_terms of forward()), those before "
        "it do not say how many they have: give their number in all batches, where 0 counts "
        "nothing, or in none",
        micro_batches_ + 1, dist::ranks_text(speak)));
  }
  if (terms.stated && !silent.empty()) {
    throw Error(fmt::format(
        "the loss of micro-batch {} on {} was not computed from what Engine::forward() returned, "
        "or that was not given loss_terms, and other losses of the step have loss terms, so that "
        "its weight is not known: give forward() their number in all batches, where 0 counts "
        "nothing, or leave loss_terms out in all, so that micro-batches count alike",
        micro_batches_ + 1, dist::ranks_text(silent)));
  }
  if (!terms.stated) sum = static_cast<double>(strategy_->communicator().size());
  if (terms.of_first == 0) terms.of_first = sum;
  terms.all += sum;
  if (terms.all == 0 && micro_batches_ + 1 == config_.accumulation_steps) {
    throw Error(
        "all batches of the step have 0 loss terms on all ranks, so that there is nothing to take "
        "the mean of: leave such a step out by give_up_step(), or leave loss_terms out in all "
        "batches, so that they count alike");
  }
  return terms;
}

void Engine::verify_backward_ended() const {
  if (!backward_threw_) return;
  throw Error(
      "an exception has left backward() in this step, so that its gradients are incomplete: call "
      "give_up_step() on all ranks and begin the step again with forward()");
}

void Engine::verify_outside_of_passes(const char* call) const {
  if (!strategy_->passes().is_running()) return;
  throw Error(
      fmt::format("{}() in the function that forward() runs, or in backward(): call it when that "
                  "has returned",
                  call));
}

void Engine::verify_in_no_step(const char* call) const {
  verify_outside_of_passes(call);
  if (released_) throw Error(fmt::format("{}() after release(): make a new engine", call));
  if (micro_batches_ == 0 && stepped_ && !backward_threw_) return;
  throw Error(fmt::format(
      "{}() in the middle of a step, after {} of {} micro-batches: call it after a step() that "
      "updated, or after give_up_step(); batches of 0 loss_terms complete a step that lacks some",
      call, micro_batches_, config_.accumulation_steps));
}

train::Step::Losses Engine::losses_of_step() {
  train::Step::Losses losses{
      .values = std::vector<double>(losses_.size()), .terms = loss_terms_, .all_terms = terms_.all};
  losses.said = checks_.before_update(losses_, losses.values);
  return losses;
}

bool Engine::step() {
  const dist::CallScope call(strategy_->mesh().world(), "Engine::step");
  verify_backward_ended();
  verify_outside_of_passes("step");
  // Not between micro-batches, after which a program need not call step().
  if (micro_batches_ == config_.accumulation_steps && pending_ && pending_->is_written()) {
    finish_save();
  }
  if (stepped_) {
    throw Error(
        "step() before the engine's backward(): there are no gradients to step with; call "
        "engine.backward(loss) in place of loss.backward()");
  }
  stepped_ = true;
  if (micro_batches_ < config_.accumulation_steps) return false;
  StepMetrics metrics;
  metrics.step = step_.number();
  bool updated = false;
  base::KeptError problem;
  problem.keep([&] {
    updated = step_.end(losses_of_step());
    if (updated) strategy_->sync_parameters();
  });
  // All ranks have found the same. If a peer is lost, this error is said and not the next one.
  if (problem.is_there()) problem.keep([this] { give_up_step(); });
  problem.rethrow();
  if (meter_) {
    metrics.updated = updated;
    metrics.gradient_norm = updated ? gradient_norm() : 0;
    metrics.loss_terms = terms_.stated ? terms_.all : 0;
    metrics.loss = step_.loss();
    meter_->measure(metrics);
  }
  end_step();
  // The callback may call on_step(), which drops its meter.
  if (const auto meter = meter_) {
    const ScopedValue<bool> within(in_callback_, true);
    meter->report(metrics);
  }
  return updated;
}

void Engine::give_up_step() {
  // After an exception this rank may join reductions that others have started in backward().
  const dist::CallScope call(strategy_->mesh().world(), "Engine::backward");
  end_step();
}

// Drops what a step has left.
void Engine::end_step() {
  gradients_.forget();
  checks_.end_step();
  backward_threw_ = false;
  losses_.clear();
  loss_terms_.clear();
  micro_batches_ = 0;
  terms_ = {};
  stepped_ = true;
  strategy_->zero_grad();
}

train::Strategy& Engine::strategy() {
  if (!strategy_->passes().is_running()) verify_backward_ended();
  return *strategy_;
}

void Engine::release() {
  const dist::CallScope call(strategy_->mesh().world(), "Engine::release");
  verify_in_no_step("release");
  strategy_->release();
  released_ = true;
}

double Engine::save(const std::filesystem::path& folder, const SaveOptions& options) {
  const auto started = std::chrono::steady_clock::now();
  const dist::CallScope call(strategy_->mesh().world(), "Engine::save");
  verify_in_no_step("save");
  finish_save();
  io::CheckpointInfo info;
  info.step = steps();
  info.mode = mode_of(config_);
  if (step_.loss_scale()) step_.loss_scale()->write_to(info.notes);
  if (!options.position.empty()) info.notes[kPosition] = options.position;
  if (options.behind) {
    pending_ = std::make_unique<io::PendingCheckpoint>(*strategy_, folder, info, options.keep);
  } else {
    io::save_checkpoint(*strategy_, folder, info, options.keep);
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
}

void Engine::finish_save() {
  verify_backward_ended();
  if (const auto pending = std::exchange(pending_, nullptr)) pending->finish();
}

bool Engine::load(const std::filesystem::path& folder) {
  const dist::CallScope call(strategy_->mesh().world(), "Engine::load");
  verify_outside_of_passes("load");
  if (released_) throw Error("load() after release(): make a new engine");
  if (backward_threw_) give_up_step();  // first: other ranks may wait for reductions
  finish_save();
  const bool there = std::filesystem::exists(io::checkpoint::record_at(folder));
  // Ranks that see different folders would resume from different steps.
  dist::verify_same(strategy_->mesh().world(), "the checkpoint to go on from",
                    there ? "there is one" : "none");
  if (!there) return false;
  const std::string what = fmt::format("the checkpoint {} cannot be loaded", folder.string());
  std::optional<train::LossScale> scale = step_.loss_scale();
  dist::run_on_all_ranks(strategy_->mesh().world(), what, [&] {
    if (scale) scale->resume_from(io::read_checkpoint_info(folder).notes);
  });
  const io::CheckpointInfo info = io::load_checkpoint(*strategy_, folder);
  if (strategy_->mesh().world().rank() == 0) {
    note_other_settings(info.optimizer, strategy_->optimizer().settings());
  }
  step_.resume_after(info.step);
  const auto position = info.notes.find(kPosition);
  position_ = position == info.notes.end() ? "" : position->second;
  step_.loss_scale() = scale;
  give_up_step();
  return true;
}

io::WeightsFit Engine::load_weights(const safetensors::NamedTensors& weights,
                                    const io::WeightsFit& allowed) {
  verify_in_no_step("load_weights");
  return io::load_weights(*strategy_, weights, allowed);
}

io::WeightsFit Engine::load_weights(const std::filesystem::path& path,
                                    const io::WeightsFit& allowed) {
  verify_in_no_step("load_weights");
  return io::load_weights(*strategy_, path, allowed);
}

}  // namespace zero
