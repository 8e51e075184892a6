#include "checkpoints.hpp"

#include <fmt/format.h>

#include <filesystem>

#include <zero/base/error.hpp>

namespace zero::ladder {
namespace {

namespace fs = std::filesystem;

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

std::optional<io::CheckpointInfo> check_checkpoints(const Options& options) {
  std::optional<io::CheckpointInfo> saved;
  const std::string& resume = options.checkpoint.resume;
  if (!resume.empty()) saved = io::read_checkpoint_info(resume);
  if (saved && saved->step >= options.steps) {
    throw Error(
        fmt::format("--resume {}: it is of step {}, and --steps ends the run after {} in all",
                    resume, saved->step, options.steps));
  }
  if (!options.checkpoint.folder.empty()) check_place(options.checkpoint);
  return saved;
}

void resume_position(const io::CheckpointInfo& saved, const std::string& fingerprint,
                     data::DistributedSampler& sampler) {
  const auto named = saved.sampler.value_or(std::map<std::string, std::uint64_t>());
  const auto number = [&](const char* name) {
    const auto found = named.find(name);
    return found == named.end() ? 0 : found->second;
  };
  sampler.restore({number("seed"), static_cast<std::int64_t>(number("dataset_size")),
                   static_cast<std::int64_t>(number("global_batch")),
                   static_cast<std::int64_t>(number("step"))});
  const auto data = saved.notes.find(kDataNote);
  if (sampler.step() == saved.step && data != saved.notes.end() && data->second == fingerprint) {
    return;
  }
  throw Error("its run was trained on other data: take the same --data and --seq-len");
}

}  // namespace zero::ladder
