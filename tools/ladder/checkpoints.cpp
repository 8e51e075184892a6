#include "checkpoints.hpp"

#include <fmt/format.h>

#include <filesystem>

#include <zero/base/error.hpp>
#include <zero/base/json.hpp>

namespace zero::ladder {
namespace {

namespace fs = std::filesystem;

constexpr const char* kDataNote = "data";  // fingerprint of the data set

// Batches of a run that goes on are those that it would have had.
void check_position(const data::DistributedSampler::State& saved, const Options& options,
                    std::int64_t size) {
  if (saved.global_batch != options.step_samples()) {
    // Ranks of one place on the data axis have the same samples.
    const int ranks = options.data_ranks();
    const std::int64_t batches = ranks * options.micro_batches;
    throw Error(fmt::format(
        "--resume {}: its run takes {} samples a step over all ranks, {} {}rank{} with --batch "
        "{}{} "
        "take{} {}: {}",
        options.resume, saved.global_batch, ranks, options.has_mesh() ? "data " : "",
        ranks == 1 ? "" : "s", options.batch,
        options.micro_batches == 1 ? ""
                                   : fmt::format(" and --micro-batches {}", options.micro_batches),
        ranks == 1 ? "s" : "", options.step_samples(),
        saved.global_batch % batches == 0
            ? fmt::format("take --batch {}", saved.global_batch / batches)
            : "take a number of ranks that divides them, and --batch to match"));
  }
  if (saved.seed != options.seed) {
    throw Error(fmt::format("--resume {}: its run has seed {}: take --seed {}", options.resume,
                            saved.seed, saved.seed));
  }
  if (saved.dataset_size != size) {
    throw Error(
        fmt::format("--resume {}: its run trains on {} samples in all, this one on {}: take the "
                    "same --data and --seq-len, and the same --validation",
                    options.resume, saved.dataset_size, size));
  }
}

void check_steps(const io::CheckpointInfo& saved, const Options& options) {
  if (!saved.sampler) {
    throw Error(
        fmt::format("--resume {}: it does not say where the data stood; another program saved it",
                    options.resume));
  }
  // save_if_due() saves one number as both.
  if (saved.sampler->step != saved.step) {
    throw Error(
        fmt::format("--resume {}: it is of step {} and its data stands at step {}, which must be "
                    "the same; another program saved it, or it was altered",
                    options.resume, saved.step, saved.sampler->step));
  }
  if (options.auto_resume && saved.step == options.steps) {
    // A launcher starts ranks again that were ended, be it after the last checkpoint.
    std::error_code ignored;
    if (options.save.empty() || fs::exists(fs::path(options.save) / "config.json", ignored)) return;
    throw Error(fmt::format(
        "--auto-resume: the checkpoint in {} is of step {}, the last, but the run ended "
        "before it wrote --save {}; one step more (--steps {}) writes it",
        options.resume, saved.step, options.save, options.steps + 1));
  }
  if (saved.step >= options.steps) {
    throw Error(fmt::format(
        "--resume {}: it is of step {} and --{} is {}, which counts from the "
        "start of the run: there is nothing left to train",
        options.resume, saved.step,
        options.epochs > 0 ? fmt::format("epochs {}", options.epochs) : "steps", options.steps));
  }
}

void check_resume(const io::CheckpointInfo& saved, const Options& options, const Samples& samples) {
  check_steps(saved, options);
  check_position(*saved.sampler, options, std::ssize(samples.training));
  const auto data = saved.notes.find(kDataNote);
  if (data != saved.notes.end() && data->second != samples.dataset->fingerprint()) {
    throw Error(
        fmt::format("--resume {}: its run was trained on other data: take the same --data and "
                    "--seq-len",
                    options.resume));
  }
}

// A run from the start must not take the place of one that could still go on.
void check_place(const Options& options) {
  base::check_writable(fs::path(options.checkpoint) / "manifest.json");
  std::error_code ignored;
  if (!fs::exists(fs::path(options.checkpoint) / "manifest.json", ignored)) return;
  const io::CheckpointInfo there = io::read_checkpoint_info(options.checkpoint);
  if (!options.resume.empty() && fs::equivalent(options.checkpoint, options.resume, ignored)) {
    return;
  }
  throw Error(
      fmt::format("--checkpoint {}: holds a checkpoint of step {}: go on from it with --resume {}, "
                  "or name another folder",
                  options.checkpoint, there.step, options.checkpoint));
}

}  // namespace

std::optional<io::CheckpointInfo> check_checkpoints(const Options& options,
                                                    const Samples& samples) {
  std::optional<io::CheckpointInfo> saved;
  if (!options.resume.empty()) {
    saved = io::read_checkpoint_info(options.resume);
    check_resume(*saved, options, samples);
  }
  if (!options.checkpoint.empty()) check_place(options);
  return saved;
}

std::string describe(const io::CheckpointInfo& saved, const Options& options) {
  std::string text =
      fmt::format("goes on after step {} of {}, saved by {} on {} rank{}", saved.step,
                  options.resume, saved.mode, saved.world_size, saved.world_size == 1 ? "" : "s");
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
  if (options.resume.empty()) return;
  const io::CheckpointInfo saved = io::load_checkpoint(strategy, options.resume);
  check_steps(saved, options);  // it may be another than the one that was looked at before
  if (saved.step != trainer.steps()) {
    throw Error(
        fmt::format("--resume {}: a checkpoint of step {} took the place of that of step {}",
                    options.resume, saved.step, trainer.steps()));
  }
  sampler.restore(*saved.sampler);
  if (trainer.loss_scale()) trainer.loss_scale()->resume_from(saved.notes);
}

std::string when_saved(const Options& options) {
  if (options.checkpoint.empty()) return "never";
  if (options.checkpoint_every == 0) return "at the end";
  return fmt::format("every {} steps", options.checkpoint_every);
}

void save_if_due(train::Strategy& strategy, train::Trainer& trainer,
                 const data::DistributedSampler& sampler, const std::string& mode,
                 const Options& options, const data::Dataset& dataset) {
  if (options.checkpoint.empty()) return;
  const std::int64_t step = sampler.step();
  const bool due = options.checkpoint_every > 0 && step % options.checkpoint_every == 0;
  if (!due && step != options.steps) return;
  io::CheckpointInfo info;
  info.step = step;
  info.mode = mode;
  info.sampler = sampler.state();
  info.notes[kDataNote] = dataset.fingerprint();
  if (trainer.loss_scale()) trainer.loss_scale()->write_to(info.notes);
  io::save_checkpoint(strategy, options.checkpoint, info);
}

}  // namespace zero::ladder
