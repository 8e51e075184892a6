#include "engine.hpp"

#include <fmt/format.h>

#include <utility>
#include <zero/error.hpp>
#include <zero/train/checkpoint.hpp>
#include <zero/train/checkpoint_manifest.hpp>

namespace zero {

Engine::Engine(nn::Model& model, dist::Communicator& communicator,
               optim::OptimizerFactory optimizer, const EngineConfig& config,
               nn::ParameterSource* values)
    : config_(config),
      overlap_({model, communicator, std::move(optimizer), values, "engine"}, config.overlap) {
  if (config.accumulation_steps < 1) {
    throw Error(
        fmt::format("a step of {} micro-batches; 1 is the least", config.accumulation_steps));
  }
  communicator.agree("the engine's step", fmt::format("{} micro-batches, clip norm {}",
                                                      config.accumulation_steps, config.clip_norm));
}

at::Tensor Engine::forward(const data::Batch& batch) {
  overlap_.communicator().set_step(steps_);
  overlap_.set_last_micro_batch(micro_batches_ + 1 == config_.accumulation_steps);
  return overlap_.forward(batch);
}

void Engine::backward(const at::Tensor& loss) {
  if (!stepped_) throw Error("backward() a second time before step(): call step() after each");
  // With one micro-batch nothing is multiplied, not even by 1.
  const auto parts = static_cast<double>(config_.accumulation_steps);
  overlap_.backward(config_.accumulation_steps == 1 ? loss : loss / parts);
  overlap_.finish_backward();
  ++micro_batches_;
  stepped_ = false;
}

bool Engine::step() {
  if (stepped_) throw Error("step() before backward(): there are no gradients to step with");
  stepped_ = true;
  if (micro_batches_ < config_.accumulation_steps) return false;
  micro_batches_ = 0;
  gradient_norm_ = config_.clip_norm > 0 ? overlap_.clip_grad_norm(config_.clip_norm) : 0.0F;
  overlap_.optimizer_step();
  overlap_.sync_parameters();
  overlap_.zero_grad();
  ++steps_;
  return true;
}

void Engine::give_up_step() {
  overlap_.zero_grad();
  micro_batches_ = 0;
  stepped_ = true;
}

void Engine::save(const std::filesystem::path& folder) {
  if (micro_batches_ > 0 || !stepped_) {
    throw Error(
        "save() in the middle of a step: a checkpoint is taken after a step() that updated");
  }
  train::CheckpointInfo info;
  info.step = steps_;
  info.mode = fmt::format("engine{}", config_.overlap.stage);
  train::save_checkpoint(overlap_, folder, info);
}

bool Engine::load(const std::filesystem::path& folder) {
  const bool there = std::filesystem::exists(folder / train::checkpoint::kManifestFile);
  // Ranks that see different folders would go on from different steps.
  overlap_.communicator().agree("the checkpoint to go on from", there ? "there is one" : "none");
  if (!there) return false;
  steps_ = train::load_checkpoint(overlap_, folder).step;
  give_up_step();
  return true;
}

}  // namespace zero
