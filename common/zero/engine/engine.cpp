#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <utility>

#include <zero/base/error.hpp>
#include <zero/engine/engine.hpp>
#include <zero/io/checkpoint.hpp>
#include <zero/io/checkpoint_manifest.hpp>
#include <zero/train/registry.hpp>
#include <zero/train/trainer.hpp>

namespace zero {

namespace {

// Chapter 05 by its name in the registry, so that the library does not depend on a chapter.
std::unique_ptr<train::Strategy> make_strategy(train::StrategyArguments arguments,
                                               const OverlapOptions& options) {
  check_options(options);
  arguments.options = options;
  train::Registry registry;
  train::register_all_chapters(registry);
  return registry.make(fmt::format("engine{}", options.stage), std::move(arguments));
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
  communicator.verify_same_on_all_ranks(
      "the engine's step",
      fmt::format("{} micro-batches, clip norm {}, {}", config.accumulation_steps, config.clip_norm,
                  loss_scale_ ? loss_scale_->describe() : "no loss scale"));
}

at::Tensor Engine::forward(const data::Batch& batch) {
  strategy_->communicator().set_step(steps_);
  return strategy_->forward(batch);
}

void Engine::backward(const at::Tensor& loss) {
  if (micro_batches_ == config_.accumulation_steps) {
    throw Error(
        fmt::format("backward() number {} of a step of {} micro-batches (accumulation_steps): call "
                    "step() first",
                    micro_batches_ + 1, config_.accumulation_steps));
  }
  // Here and not in forward(): which micro-batch is the last is decided by the order of backward().
  strategy_->set_requires_gradient_sync(micro_batches_ + 1 == config_.accumulation_steps);
  strategy_->set_gradient_scale(loss_scale());
  // Nothing is multiplied by 1, which would be an operation more for autograd.
  const auto parts = static_cast<double>(config_.accumulation_steps);
  const at::Tensor share = config_.accumulation_steps == 1 ? loss : loss / parts;
  strategy_->backward(loss_scale_ ? share * loss_scale_->value() : share);
  strategy_->finish_backward();
  losses_.push_back(loss.detach());
  ++micro_batches_;
  stepped_ = false;
}

void Engine::check_losses() {
  dist::Communicator& communicator = strategy_->communicator();
  communicator.synchronize();  // the host is about to read
  double mine = 0;
  for (const at::Tensor& loss : losses_) mine += std::isfinite(loss.item<double>()) ? 0 : 1;
  losses_.clear();
  const std::vector<double> all = dist::all_gather_scalars(communicator, {mine});
  std::vector<std::size_t> ranks;
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (all[r] > 0) ranks.push_back(r);
  }
  if (ranks.empty()) return;
  give_up_step();
  throw Error(fmt::format(
      "step {}: the loss is infinite or NaN on rank{} {}; no rank has changed its weights", steps_,
      ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", ")));
}

bool Engine::step() {
  if (stepped_) throw Error("step() before backward(): there are no gradients to step with");
  stepped_ = true;
  if (micro_batches_ < config_.accumulation_steps) return false;
  check_losses();
  micro_batches_ = 0;
  const bool updated = update();
  strategy_->zero_grad();
  ++(updated ? steps_ : skipped_steps_);
  return updated;
}

bool Engine::update() {
  if (loss_scale_ && train::leave_out_step(*strategy_, *loss_scale_, steps_)) return false;
  gradient_norm_ = config_.clip_norm > 0 ? strategy_->clip_grad_norm(config_.clip_norm) : 0.0F;
  strategy_->optimizer_step();
  strategy_->sync_parameters();
  if (loss_scale_) loss_scale_->note_good_step();
  return true;
}

void Engine::give_up_step() {
  strategy_->zero_grad();
  losses_.clear();
  micro_batches_ = 0;
  stepped_ = true;
}

void Engine::release() {
  if (micro_batches_ > 0 || !stepped_) throw Error("release() in the middle of a step");
  strategy_->release();
}

void Engine::save(const std::filesystem::path& folder) {
  if (micro_batches_ > 0 || !stepped_) {
    throw Error(
        "save() in the middle of a step: a checkpoint is taken after a step() that updated");
  }
  io::CheckpointInfo info;
  info.step = steps_;
  info.mode = fmt::format("engine{}", config_.overlap.stage);
  if (loss_scale_) loss_scale_->write_to(info.notes);
  io::save_checkpoint(*strategy_, folder, info);
}

bool Engine::load(const std::filesystem::path& folder) {
  const bool there = std::filesystem::exists(folder / io::checkpoint::kManifestFile);
  // Ranks that see different folders would go on from different steps.
  strategy_->communicator().verify_same_on_all_ranks("the checkpoint to go on from",
                                                     there ? "there is one" : "none");
  if (!there) return false;
  const io::CheckpointInfo info = io::load_checkpoint(*strategy_, folder);
  steps_ = info.step;
  if (loss_scale_) loss_scale_->resume_from(info.notes);
  give_up_step();
  return true;
}

}  // namespace zero
