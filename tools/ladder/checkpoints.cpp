#include "checkpoints.hpp"

#include <fmt/format.h>

#include <filesystem>

#include <zero/base/error.hpp>

namespace zero::ladder {
namespace {

namespace fs = std::filesystem;

// Why a run cannot go on from a checkpoint; empty if it can.
std::string problem_of_steps(const io::CheckpointInfo& saved, const Options& options) {
  // The ladder saves one number as both.
  const data::DistributedSampler::State position = position_in(saved);
  if (position.dataset_size == 0 || position.step != saved.step) {
    return fmt::format(
        "it does not say where the data stood after its step {}; another program saved it, or it "
        "was altered",
        saved.step);
  }
  if (saved.step < options.steps) return "";
  return fmt::format("it is of step {}, and --steps ends the run after {} in all", saved.step,
                     options.steps);
}

// Batches of a run that goes on are those that it would have had.
std::string problem_of_resuming(const io::CheckpointInfo& saved, const Options& options,
                                const Samples& samples) {
  const std::string of_steps = problem_of_steps(saved, options);
  if (!of_steps.empty()) return of_steps;
  const data::DistributedSampler::State position = position_in(saved);
  if (position.seed != options.seed) return fmt::format("take --seed {}, its run's", position.seed);
  if (position.global_batch != options.step_samples()) {
    return fmt::format(
        "its run takes {} samples a step over all ranks, this one {}: take ranks, --batch and "
        "--micro-batches whose product is the same",
        position.global_batch, options.step_samples());
  }
  if (position.dataset_size != samples.dataset->size()) {
    return fmt::format(
        "its run trains on {} samples in all, this one on {}: take the same --data and --seq-len",
        position.dataset_size, samples.dataset->size());
  }
  const auto data = saved.notes.find(kDataNote);
  if (data == saved.notes.end() || data->second == samples.dataset->fingerprint()) return "";
  return "its run was trained on other data: take the same --data and --seq-len";
}

// A run from the start must not take the place of one that could still go on.
void check_place(const CheckpointOptions& options) {
  std::error_code ignored;
  if (!fs::exists(fs::path(options.folder) / "checkpoint.json", ignored)) return;
  const io::CheckpointInfo there = io::read_checkpoint_info(options.folder);
  if (!options.resume.empty() && fs::equivalent(options.folder, options.resume, ignored)) return;
  throw Error(
      fmt::format("--checkpoint {}: holds a checkpoint of step {}: go on from it with --resume {}, "
                  "or name another folder",
                  options.folder, there.step, options.folder));
}

}  // namespace

void write_position(const data::DistributedSampler& sampler, io::CheckpointInfo& info) {
  const data::DistributedSampler::State state = sampler.state();
  info.step = state.step;
  info.sampler = {{"seed", state.seed},
                  {"dataset_size", state.dataset_size},
                  {"global_batch", state.global_batch},
                  {"step", state.step}};
}

data::DistributedSampler::State position_in(const io::CheckpointInfo& saved) {
  const auto named = saved.sampler.value_or(std::map<std::string, std::uint64_t>());
  const auto number = [&](const char* name) {
    const auto found = named.find(name);
    return found == named.end() ? 0 : found->second;
  };
  return {number("seed"), static_cast<std::int64_t>(number("dataset_size")),
          static_cast<std::int64_t>(number("global_batch")),
          static_cast<std::int64_t>(number("step"))};
}

std::optional<io::CheckpointInfo> check_checkpoints(const Options& options,
                                                    const Samples& samples) {
  std::optional<io::CheckpointInfo> saved;
  if (!options.checkpoint.resume.empty()) {
    saved = io::read_checkpoint_info(options.checkpoint.resume);
    const std::string problem = problem_of_resuming(*saved, options, samples);
    if (!problem.empty()) {
      throw Error(fmt::format("--resume {}: {}", options.checkpoint.resume, problem));
    }
  }
  if (!options.checkpoint.folder.empty()) check_place(options.checkpoint);
  return saved;
}

std::string describe(const io::CheckpointInfo& saved, const Options& options) {
  std::string text = fmt::format("goes on after step {} of {}, saved by {} on {} rank{}",
                                 saved.step, options.checkpoint.resume, saved.mode,
                                 saved.world_size, saved.world_size == 1 ? "" : "s");
  for (const auto& group : saved.optimizer.groups) {
    const auto rate = group.find("learning_rate");
    if (rate == group.end() || rate->second == options.learning_rate) continue;
    text += fmt::format("\nnote: the learning rate was {}, now it is {}", rate->second,
                        options.learning_rate);
  }
  return text;
}

}  // namespace zero::ladder
