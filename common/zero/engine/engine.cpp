#include <ATen/ops/isfinite.h>
#include <ATen/ops/stack.h>
#include <fmt/format.h>

#include <exception>
#include <numeric>
#include <utility>

#include <zero/base/error.hpp>
#include <zero/engine/engine.hpp>
#include <zero/io/checkpoint.hpp>
#include <zero/io/checkpoint_manifest.hpp>
#include <zero/train/registry.hpp>
#include <zero/train/update.hpp>

namespace zero {

namespace {

// The mode of chapter 05; of chapter 06 where groups of ranks share the model states; of chapter 07
// with an option of ZeRO++. By its name in the registry, so that the library does not depend on a
// chapter.
std::string mode_of(const OverlapOptions& options) {
  if (std::string mode = zero_plus_plus_mode(options); !mode.empty()) return mode;
  return fmt::format("{}{}", options.shard_size == 0 ? "engine" : "hsdp", options.stage);
}

std::unique_ptr<train::Strategy> make_strategy(train::StrategyArguments arguments,
                                               const OverlapOptions& options) {
  const dist::CallScope call(arguments.communicator, "Engine::Engine");
  arguments.options = checked(options);
  train::Registry registry;
  train::register_all_chapters(registry);
  return registry.make(mode_of(options), std::move(arguments));
}

}  // namespace

Engine::Engine(nn::Model& model, dist::Communicator& communicator,
               optim::OptimizerFactory optimizer, const EngineConfig& config,
               nn::ParameterSource* values)
    : config_(config),
      strategy_(make_strategy({.model = model,
                               .communicator = communicator,
                               .optimizer = std::move(optimizer),
                               .values = values,
                               .reduce_type = config.reduce_in_float32 ? dist::ReduceType::kFloat32
                                                                       : dist::ReduceType::kOwn},
                              config.overlap)) {
  if (config.accumulation_steps < 1) {
    throw Error(
        fmt::format("a step of {} micro-batches; 1 is the least", config.accumulation_steps));
  }
  if (config.loss_scale.initial != 0) loss_scale_.emplace(config.loss_scale);
  const dist::CallScope call(communicator, "Engine::Engine");
  strategy_->all_ranks().verify_same_on_all_ranks(
      "the engine's step",
      fmt::format("{} micro-batches, clip norm {}, {}, {} where a gradient is not finite",
                  config.accumulation_steps, config.clip_norm,
                  loss_scale_ ? loss_scale_->describe() : "no loss scale",
                  train::name(config.on_nonfinite_gradient)));
}

at::Tensor Engine::forward(const data::Batch& batch) {
  const dist::CallScope call(strategy_->communicator(), "Engine::forward");
  strategy_->communicator().set_step(steps_);
  return strategy_->forward(batch);
}

void Engine::backward(const at::Tensor& loss) {
  const dist::CallScope call(strategy_->communicator(), "Engine::backward");
  if (micro_batches_ == config_.accumulation_steps) {
    throw Error(
        fmt::format("backward() number {} of a step of {} micro-batches (accumulation_steps): call "
                    "step() first",
                    micro_batches_ + 1, config_.accumulation_steps));
  }
  double mine = strategy_->passes().forwards().loss_terms(loss);
  const Terms terms = with_micro_batch(mine);
  // Not in forward(): the order of backward() decides which micro-batch is the last.
  strategy_->set_requires_gradient_sync(micro_batches_ + 1 == config_.accumulation_steps);
  strategy_->averaged_gradients().set_loss_scale(loss_scale());
  const double expected = terms.of_first * static_cast<double>(config_.accumulation_steps);
  strategy_->backward(
      train::weighted_loss(loss, {mine, expected, strategy_->communicator().size(), loss_scale()}));
  strategy_->finish_backward();
  losses_.push_back(loss.detach().reshape({}));
  terms_ = terms;
  ++micro_batches_;
  stepped_ = false;
}

Engine::Terms Engine::with_micro_batch(double& mine) const {
  dist::Communicator& communicator = strategy_->communicator();
  const std::vector<double> ranks = dist::all_gather_scalars(communicator, {mine});
  double sum = std::accumulate(ranks.begin(), ranks.end(), 0.0);
  Terms terms = terms_;
  if (micro_batches_ == 0) terms = {.of_first = 0, .all = 0, .stated = sum > 0};
  if (!terms.stated && sum > 0) {
    throw Error(fmt::format(
        "micro-batch {} of the step has loss terms (Batch::loss_terms), those before it have none "
        "on any rank: set them for all batches, or for none",
        micro_batches_ + 1));
  }
  if (!terms.stated) {
    mine = 1;
    sum = communicator.size();
  }
  if (micro_batches_ == 0) terms.of_first = sum;
  terms.all += sum;
  return terms;
}

void Engine::verify_before_update() {
  dist::Communicator& communicator = strategy_->communicator();
  communicator.synchronize();  // the host is about to read
  // One tensor: the host waits once for a GPU.
  const at::Tensor finite = at::isfinite(at::stack(losses_).cpu());
  const double mine = finite.all().item<bool>() ? 0 : 1;
  const std::vector<double> all =
      dist::all_gather_scalars(communicator, {mine, train::settings_digest(*strategy_)});
  std::vector<int> ranks;
  std::vector<double> settings;
  for (std::size_t r = 0; 2 * r < all.size(); ++r) {
    if (all[2 * r] > 0) ranks.push_back(static_cast<int>(r));
    settings.push_back(all[2 * r + 1]);
  }
  if (!ranks.empty()) {
    throw Error(
        fmt::format("step {}: the loss is infinite or NaN on {}; no rank has changed its weights",
                    steps_, train::ranks_text(ranks)));
  }
  train::verify_settings(*strategy_, settings);
}

bool Engine::step() {
  const dist::CallScope call(strategy_->communicator(), "Engine::step");
  if (stepped_) throw Error("step() before backward(): there are no gradients to step with");
  stepped_ = true;
  if (micro_batches_ < config_.accumulation_steps) return false;
  bool updated = false;
  try {
    verify_before_update();
    updated = update();
  } catch (...) {
    // All ranks have found the same. If a peer is lost, report that error and not the next one.
    try {
      give_up_step();
    } catch (const std::exception&) {
    }
    throw;
  }
  give_up_step();  // the step is over: drop what it has left
  ++(updated ? steps_ : skipped_steps_);
  return updated;
}

bool Engine::update() {
  // The gradients so far were weighted relative to the terms of the first micro-batch.
  const double factor =
      terms_.of_first * static_cast<double>(config_.accumulation_steps) / terms_.all;
  if (factor != 1.0) strategy_->averaged_gradients().multiply(factor);
  const train::UpdateOptions options{config_.clip_norm, optim::Norm::kL2,
                                     config_.on_nonfinite_gradient};
  const train::UpdateResult result =
      train::update(*strategy_, options, loss_scale_ ? &*loss_scale_ : nullptr, steps_);
  if (result.skipped) return false;
  gradient_norm_ = result.gradient_norm;
  strategy_->sync_parameters();
  return true;
}

void Engine::give_up_step() {
  // After an exception this rank may join reductions that others have started in backward().
  const dist::CallScope call(strategy_->communicator(), "Engine::backward");
  losses_.clear();
  micro_batches_ = 0;
  terms_ = {};
  stepped_ = true;
  strategy_->zero_grad();
}

void Engine::release() {
  const dist::CallScope call(strategy_->communicator(), "Engine::release");
  if (micro_batches_ > 0 || !stepped_) throw Error("release() in the middle of a step");
  strategy_->release();
}

void Engine::save(const std::filesystem::path& folder) {
  const dist::CallScope call(strategy_->communicator(), "Engine::save");
  if (micro_batches_ > 0 || !stepped_) {
    throw Error(
        "save() in the middle of a step: a checkpoint is taken after a step() that updated");
  }
  io::CheckpointInfo info;
  info.step = steps_;
  info.mode = mode_of(config_.overlap);
  if (loss_scale_) loss_scale_->write_to(info.notes);
  io::save_checkpoint(*strategy_, folder, info);
}

bool Engine::load(const std::filesystem::path& folder) {
  const dist::CallScope call(strategy_->communicator(), "Engine::load");
  const bool there = std::filesystem::exists(folder / io::checkpoint::kManifestFile);
  // Ranks that see different folders would resume from different steps.
  strategy_->all_ranks().verify_same_on_all_ranks("the checkpoint to go on from",
                                                  there ? "there is one" : "none");
  if (!there) return false;
  const io::CheckpointInfo info = io::load_checkpoint(*strategy_, folder);
  steps_ = info.step;
  if (loss_scale_) loss_scale_->resume_from(info.notes);
  give_up_step();
  return true;
}

}  // namespace zero
