#include "checkpoints.hpp"

#include <fmt/format.h>

#include <filesystem>

#include <zero/base/error.hpp>
#include <zero/base/json.hpp>

namespace zero::ladder {
namespace {

namespace fs = std::filesystem;

constexpr const char* kDataNote = "data";  // fingerprint of the data set

[[noreturn]] void refuse(const Options& options, const std::string& why) {
  throw Error(fmt::format("--resume {}: {}", options.checkpoint.resume, why));
}

// Batches of a run that goes on are those that it would have had.
void check_position(const data::DistributedSampler::State& saved, const Options& options,
                    std::int64_t size) {
  if (saved.global_batch != options.step_samples()) {
    const std::int64_t batches = options.data_ranks() * options.micro_batches;
    refuse(options,
           fmt::format("its run takes {} samples a step over all ranks, and {} data ranks with "
                       "--micro-batches {} and --batch {} take {}: take {}",
                       saved.global_batch, options.data_ranks(), options.micro_batches,
                       options.batch, options.step_samples(),
                       saved.global_batch % batches == 0
                           ? fmt::format("--batch {}", saved.global_batch / batches)
                           : "a number of ranks that divides them, and --batch to match"));
  }
  if (saved.seed != options.seed) {
    refuse(options, fmt::format("its run has seed {}: take --seed {}", saved.seed, saved.seed));
  }
  if (saved.dataset_size != size) {
    refuse(options, fmt::format("its run trains on {} samples in all, this one on {}: take the "
                                "same --data and --seq-len, and the same --validation",
                                saved.dataset_size, size));
  }
}

void check_steps(const io::CheckpointInfo& saved, const Options& options) {
  // save_if_due() saves one number as both.
  if (!saved.sampler || saved.sampler->step != saved.step) {
    refuse(options, fmt::format("it does not say where the data stood after its step {}; another "
                                "program saved it, or it was altered",
                                saved.step));
  }
  if (options.checkpoint.auto_resume && saved.step == options.steps) {
    // A launcher starts ranks again that were ended, be it after the last checkpoint.
    std::error_code ignored;
    if (options.save.empty() || fs::exists(fs::path(options.save) / "config.json", ignored)) return;
    throw Error(fmt::format(
        "--auto-resume: the checkpoint in {} is of step {}, the last, but the run ended "
        "before it wrote --save {}; one step more (--steps {}) writes it",
        options.checkpoint.resume, saved.step, options.save, options.steps + 1));
  }
  if (saved.step >= options.steps) {
    refuse(options, fmt::format("it is of step {}, and {} from the start of the run are {} steps: "
                                "there is nothing left to train",
                                saved.step,
                                options.epochs > 0 ? fmt::format("--epochs {}", options.epochs)
                                                   : fmt::format("--steps {}", options.steps),
                                options.steps));
  }
}

void check_resume(const io::CheckpointInfo& saved, const Options& options, const Samples& samples) {
  check_steps(saved, options);
  check_position(*saved.sampler, options, std::ssize(samples.training));
  const auto data = saved.notes.find(kDataNote);
  if (data != saved.notes.end() && data->second != samples.dataset->fingerprint()) {
    refuse(options, "its run was trained on other data: take the same --data and --seq-len");
  }
}

// A run from the start must not take the place of one that could still go on.
void check_place(const CheckpointOptions& options) {
  const fs::path manifest = fs::path(options.folder) / "manifest.json";
  base::check_writable(manifest);
  std::error_code ignored;
  if (!fs::exists(manifest, ignored)) return;
  const io::CheckpointInfo there = io::read_checkpoint_info(options.folder);
  if (!options.resume.empty() && fs::equivalent(options.folder, options.resume, ignored)) return;
  throw Error(
      fmt::format("--checkpoint {}: holds a checkpoint of step {}: go on from it with --resume {}, "
                  "or name another folder",
                  options.folder, there.step, options.folder));
}

}  // namespace

std::optional<io::CheckpointInfo> check_checkpoints(const Options& options,
                                                    const Samples& samples) {
  std::optional<io::CheckpointInfo> saved;
  if (!options.checkpoint.resume.empty()) {
    saved = io::read_checkpoint_info(options.checkpoint.resume);
    check_resume(*saved, options, samples);
  }
  if (!options.checkpoint.folder.empty()) check_place(options.checkpoint);
  return saved;
}

std::string describe(const io::CheckpointInfo& saved, const Options& options) {
  std::string text = fmt::format("goes on after step {} of {}, saved by {} on {} rank{}",
                                 saved.step, options.checkpoint.resume, saved.mode,
                                 saved.world_size, saved.world_size == 1 ? "" : "s");
  if (saved.step == options.steps) text += "\nthere is nothing left to train";
  for (const auto& group : saved.optimizer.groups) {
    const auto rate = group.find("learning_rate");
    if (rate == group.end() || rate->second == options.learning_rate) continue;
    text += fmt::format("\nnote: the learning rate was {}, now it is {}", rate->second,
                        options.learning_rate);
  }
  return text;
}

void resume(train::Strategy& strategy, train::Trainer& trainer, data::DistributedSampler& sampler,
            const Options& options) {
  if (options.checkpoint.resume.empty()) return;
  const io::CheckpointInfo saved = io::load_checkpoint(strategy, options.checkpoint.resume);
  check_steps(saved, options);  // it may be another than the one that was looked at before
  if (saved.step != trainer.steps()) {
    refuse(options, fmt::format("a checkpoint of step {} took the place of that of step {}",
                                saved.step, trainer.steps()));
  }
  sampler.restore(*saved.sampler);
  if (trainer.loss_scale()) trainer.loss_scale()->resume_from(saved.notes);
}

std::string when_saved(const CheckpointOptions& options) {
  if (options.folder.empty()) return "never";
  return options.every == 0 ? "at the end" : fmt::format("every {} steps", options.every);
}

void save_if_due(train::Strategy& strategy, train::Trainer& trainer,
                 const data::DistributedSampler& sampler, const std::string& mode,
                 const Options& options, const data::Dataset& dataset) {
  const CheckpointOptions& to = options.checkpoint;
  const std::int64_t step = sampler.step();
  const bool due = to.every > 0 && step % to.every == 0;
  if (to.folder.empty()) return;
  if (!due && step != options.steps) return;
  io::CheckpointInfo info;
  info.step = step;
  info.mode = mode;
  info.sampler = sampler.state();
  info.notes[kDataNote] = dataset.fingerprint();
  if (trainer.loss_scale()) trainer.loss_scale()->write_to(info.notes);
  io::save_checkpoint(strategy, to.folder, info);
}

}  // namespace zero::ladder
