#pragma once

#include <optional>
#include <string>
#include <vector>

#include "hosts.hpp"
#include "hybrid.hpp"
#include "mesh.hpp"
#include "quantity.hpp"
#include "timing.hpp"

/// Which stage to take, and what it costs.
namespace zero::plan {

/// Upper limits of a request, so that bytes and tokens of all ranks stay within 63 bits: samples a
/// rank, tokens a sample, and the product of the two.
inline constexpr std::int64_t kLargestBatch = std::int64_t{1} << 20;
inline constexpr std::int64_t kLongestSequence = std::int64_t{1} << 24;
inline constexpr std::int64_t kMostTokens = std::int64_t{1} << 40;

/// What is asked.
struct Request {
  Model model;
  Policy policy = mixed();
  std::int64_t world_size = 8;
  std::int64_t batch = 1;        ///< samples a rank
  std::int64_t sequence = 2048;  ///< tokens a sample
  bool recompute = false;  ///< layers keep only their input and compute the rest again in backward
  Machine machine;
  std::optional<Memory> memory;    ///< of one rank's device
  std::optional<Stage> stage;      ///< only this one
  double break_even_share = 0.05;  ///< communication over compute that counts as little
  std::int64_t hybrid_threshold = kHybridThreshold;
  bool hybrid_report = false;  ///< print the hybrid by module and by unit, and nothing else
  MeshRequest mesh;
  HostRequest hosts;

  /// Of a rank in a step.
  std::int64_t tokens() const { return batch * sequence; }
};

/// Scratch of a rank-ordered reduction: at most two windows of 16 MiB (docs/communication.md).
inline constexpr std::int64_t kReductionScratch = 32 * kMiB;

/// One stage, with the optimizer on the device or in host memory.
struct StagePlan : Held {
  Stage stage = Stage::kDdp;
  /// Optimizer states are in host memory (ZeRO-Offload, arXiv:2101.06840, section 3: parameters and
  /// gradients stay on the device). ZeRO-3 mixed: 4 P/N.
  bool offloaded = false;
  Traffic sent;
  StepTime time;
  std::optional<std::int64_t> break_even_batch;  ///< nothing hidden
};

/// The lookahead of ZeRO-3.
struct LookaheadPlan {
  double gather = 0;                 ///< seconds, the largest unit
  double compute = 0;                ///< seconds, its forward
  std::int64_t needed = 0;           ///< k*, the smallest with which a forward waits least
  std::optional<std::int64_t> room;  ///< units that fit beside all of ZeRO-3, if it fits
  std::int64_t used = 0;             ///< the k of step times
  bool always_waits = false;         ///< all gathers together take longer than computing
};

/// Steps of which one takes at most this part longer count as equally long.
inline constexpr double kAsQuick = 0.01;

/// The answer.
struct Choice {
  /// Of the stages that fit the lowest whose step is as quick as the quickest's. Nothing if none
  /// fits or no memory was given.
  std::optional<Stage> stage;
  std::optional<Stage> next;  ///< the same of the others that fit
  std::string says;           ///< one line
  std::vector<std::string> reasons;
  /// If the answer is no: from how many ranks ZeRO-3 (or the stage asked for) would fit, model
  /// states alone and with transients and activations. Nothing: with no number of ranks.
  std::optional<std::int64_t> ranks_for_states;
  std::optional<std::int64_t> ranks_for_all;
};

struct Plan {
  Request request;
  std::vector<StagePlan> stages;  ///< those asked for, then ZeRO-3 with its optimizer offloaded
  LookaheadPlan lookahead;
  Choice choice;
  std::vector<MeshPlan> meshes;  ///< a row for each stage; nothing if no mesh was asked for
  std::vector<HostPlan> hosts;   ///< nothing if ranks_per_host was not given

  /// For printing: that of the memory, else by size.
  Unit unit() const;
  /// Whether no memory was given or something fits it.
  bool feasible() const;
};

/// One stage at any world size; `lookahead` is for its time only. For a request that make_plan()
/// takes.
StagePlan plan_stage(const Request& request, Stage stage, bool offloaded, std::int64_t world_size,
                     std::int64_t lookahead);

/// Plans. Comparisons with the memory are made in whole bytes, and a stage fits only if model
/// states, transients and the estimate of activations together do. Every number of the request is
/// above 0 and at most its upper limit. Throws zero::Error for more than kMostTokens tokens a rank,
/// for activations that cannot be counted, and as plan_meshes() and plan_hosts() do.
Plan make_plan(const Request& request);

/// The stage to take of `stages`, or why none fits. Part of make_plan().
Choice choose(const Request& request, const std::vector<StagePlan>& stages);

}  // namespace zero::plan
