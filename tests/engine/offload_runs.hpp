#pragma once

#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include <tests/support/engine_run.hpp>
#include <tests/support/session.hpp>
#include <tests/support/two_bytes.hpp>
#include <tests/support/whole_state.hpp>

/// Runs with states in memory and on a disk.
namespace zero::testing {

constexpr std::int64_t kTile = 4096;  // the smallest: many tiles, even of a small model

inline std::string offloaded(const std::string& mode, const std::filesystem::path& folder) {
  return fmt::format("{}:offload={}:offload_tile_mib={}", mode, folder.string(),
                     static_cast<double>(kTile) / (1 << 20));
}

// A model of several tiles, in memory or offloaded to a folder.
struct OffloadRun : EngineRun {
  OffloadRun(dist::Communicator& communicator, const EngineConfig& config,
             const optim::OptimizerFactory& optimizer = optim::adamw())
      : EngineRun(communicator, config, optimizer, at::kFloat, {61, 61}) {}
};

inline EngineConfig in_memory(int stage) { return {.overlap = {.stage = stage}}; }

inline EngineConfig offloaded(int stage, const std::filesystem::path& folder) {
  EngineConfig config = in_memory(stage);
  config.overlap.offload = folder.string();
  config.overlap.offload_tile_bytes = kTile;
  return config;
}

// Steps of one and two micro-batches, clipped; in one of them a gradient is infinite on one rank.
inline std::vector<double> train(Session& session, int from = 0, int to = 6) {
  std::vector<double> seen;
  for (int step = from; step < to; ++step) {
    const bool spoils = step == 3 && session.communicator().rank() == 0;
    session.strategy().passes().observe_gradients([&](std::size_t i, const at::Tensor& gradient) {
      if (spoils && i == 1) gradient.detach().view({-1})[0].fill_(INFINITY);
    });
    std::vector<data::Batch> batches = {session.batch(2 * step)};
    if (step % 2 == 1) batches.push_back(session.batch(2 * step + 1));
    const train::StepResult result = session.trainer().step(batches);
    EXPECT_TRUE(result.skipped || step != 3);
    seen.insert(seen.end(),
                {result.loss, result.loss_scale, result.gradient_norm, result.skipped ? 1.0 : 0.0});
  }
  session.strategy().passes().observe_gradients({});
  return seen;
}

inline SessionOptions options_of(at::ScalarType dtype) {
  SessionOptions options = dtype == at::kFloat ? checkpoint_options() : mixed(dtype);
  options.model.width = 41;  // several tiles on each rank
  options.trainer.clip_norm = 0.3;
  options.trainer.on_nonfinite_gradient = train::OnNonfiniteGradient::kSkip;
  return options;
}

constexpr at::ScalarType kDtypes[] = {at::kFloat, at::kBFloat16, at::kHalf};

}  // namespace zero::testing
