#pragma once

#include <optional>
#include <string>
#include <vector>

#include <zero/base/json.hpp>

#include "hosts.hpp"
#include "hybrid.hpp"
#include "mesh.hpp"
#include "quantity.hpp"
#include "timing.hpp"

/// Which stage to take, and what it costs.
namespace zero::plan {

/// Units of at least `threshold` elements, the root too, under ZeRO-3, the rest under ZeRO-2.
struct Hybrid {
  std::int64_t large = 0;  ///< elements under ZeRO-3
  std::int64_t small = 0;  ///< elements under ZeRO-2
  States states;           ///< of one rank
  double sent = 0;         ///< bytes of one rank in a step
};

/// The size from which on a unit counts as large, in elements, where nothing else is said.
inline constexpr std::int64_t kHybridThreshold = 100'000'000;

/// Mixed Adam: 16 P_large/N + 2 P_small + 14 P_small/N bytes, and (6 P_large + 4 P_small) (N-1)/N
/// bytes sent, less 2 P_root (N-1)/N if the root is large. Follows from model_states() and sent()
/// unit by unit; the idea of choosing by unit is FSDP's reshard_after_forward (arXiv:2304.11277,
/// section 3.2.2).
Hybrid hybrid(const Model& model, const Policy& policy, std::int64_t world_size,
              std::int64_t threshold = kHybridThreshold);
Hybrid hybrid(std::int64_t large, std::int64_t small, const Policy& policy,
              std::int64_t world_size);

/// One layer under tensor parallelism: four all-reduces of the layer's output, [tokens, hidden], in
/// a step, two in forward and two in backward (Shoeybi et al., "Megatron-LM", arXiv:1909.08053,
/// section 3). An all-reduce sends 2 (N-1)/N of its bytes: 8 tokens hidden e (N-1)/N bytes for a
/// rank, e bytes an element. `tokens` are those of the whole group, which works on one batch
/// together.
double tensor_parallel_sent(std::int64_t tokens, std::int64_t hidden, std::int64_t element_bytes,
                            std::int64_t world_size);

/// The tokens of a step, over all N ranks together, from which on ZeRO-3 sends less for a layer
/// than tensor parallelism: the smallest T with 3 V_layer < 8 T hidden e. Below it ZeRO-3 loses. N
/// cancels; per rank it is T/N tokens. 4.5 x hidden for a layer of 12 hidden^2 parameters.
std::int64_t tensor_parallel_crossover(std::int64_t layer_elements, std::int64_t hidden,
                                       const Policy& policy);

/// The most that is planned for, so that bytes and tokens of all ranks stay within 63 bits: samples
/// a rank, tokens a sample, and the product of the two.
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
  Recompute recompute = Recompute::kNone;
  Machine machine;
  std::optional<Memory> memory;    ///< of one rank's device
  std::optional<Stage> stage;      ///< only this one
  double break_even_share = 0.05;  ///< communication over compute that counts as little
  std::int64_t hybrid_threshold = kHybridThreshold;
  bool hybrid_report = false;  ///< print hybrid_report() and nothing else
  MeshRequest mesh;
  HostRequest hosts;

  /// Of a rank in a step.
  std::int64_t tokens() const { return batch * sequence; }
};

/// Scratch of a rank-ordered reduction: at most two windows of 16 MiB (docs/communication.md).
inline constexpr std::int64_t kReductionScratch = 32 * kMiB;

/// One stage, with the optimizer on the device or in host memory. Bytes of the fullest rank.
struct StagePlan {
  Stage stage = Stage::kDdp;
  bool offloaded = false;
  States states;
  /// What a step needs besides, in whole bytes and never too little: the scratch of a reduction;
  /// from ZeRO-2 on the gradients of the root and of one unit before they have left; under ZeRO-3
  /// the parameters of the root and of one unit, gathered. What the rank owns of them is not
  /// counted twice. Nothing at one rank.
  std::int64_t transients = 0;
  std::int64_t activations = 0;
  Traffic sent;
  double sent_in_copies = 0;  ///< total over the bytes of one copy of the parameters (V)
  StepTime time;
  std::optional<std::int64_t> break_even_batch;  ///< nothing hidden
  std::optional<bool> fits;                      ///< nothing where no memory was given

  /// An upper bound: activations shrink while gradients grow, so the peak is lower.
  std::int64_t total() const { return states.total() + transients + activations; }
};

/// The lookahead of ZeRO-3.
struct LookaheadPlan {
  double gather = 0;                 ///< seconds, the largest unit
  double compute = 0;                ///< seconds, its forward
  std::int64_t needed = 0;           ///< k*, the smallest with which a forward waits least
  std::optional<std::int64_t> room;  ///< units that fit beside all of ZeRO-3, where it fits
  std::int64_t used = 0;             ///< what step times are for
  std::string says;
};

/// Steps of which one takes at most this part longer count as equally long.
inline constexpr double kAsQuick = 0.01;

/// The answer.
struct Choice {
  /// Of the stages that fit the lowest whose step is as quick as the quickest's. Nothing where none
  /// fits or no memory was given.
  std::optional<Stage> stage;
  std::optional<Stage> next;  ///< the same of the others that fit
  std::string says;           ///< one line
  std::vector<std::string> reasons;
  /// Where the answer is no: from how many ranks ZeRO-3 (or the stage asked for) would fit, model
  /// states alone and with transients and activations. Nothing: with no number of ranks.
  std::optional<std::int64_t> ranks_for_states;
  std::optional<std::int64_t> ranks_for_all;
};

struct Plan {
  Request request;
  std::vector<StagePlan> stages;  ///< those asked for, then ZeRO-3 with its optimizer offloaded
  LookaheadPlan lookahead;
  Hybrid hybrid;
  std::int64_t crossover_tokens = 0;  ///< tensor_parallel_crossover() of the largest unit
  Choice choice;
  /// Nothing where no mesh was asked for. On one mesh a row for each stage, else of each mesh the
  /// lowest stage that fits, or the highest.
  std::vector<MeshPlan> meshes;
  std::vector<HostPlan> hosts;  ///< nothing where ranks_per_host was not given

  /// For printing: that of the memory, else by size.
  Unit unit() const;
  /// Whether memory was given and nothing fits it.
  bool feasible() const;
};

/// One stage at any world size; `lookahead` is for its time only. For a request that make_plan()
/// takes.
StagePlan plan_stage(const Request& request, Stage stage, bool offloaded, std::int64_t world_size,
                     std::int64_t lookahead);

/// `stage` on one mesh of the ranks. For a request that make_plan() takes, and a mesh that the
/// model can be cut for.
MeshPlan plan_mesh(const Request& request, const Mesh& mesh, Stage stage);

/// The most ranks of which all meshes are listed: more would be too many to read.
inline constexpr std::int64_t kMostRanksOfMeshes = 4096;

/// The rows of Plan::meshes. Part of make_plan(). Throws zero::Error that names option and numbers:
/// for axes that do not divide the ranks, a model that the tensor axis cannot share, more stages
/// than layers, micro-batches that do not divide the samples, a stage that is not possible, and
/// options of a mesh without one.
std::vector<MeshPlan> plan_meshes(const Request& request);

/// Plans. Comparisons with the memory are made in whole bytes, and a stage fits only if model
/// states, transients and the estimate of activations together do. Every number of the request is
/// above 0 and at most what is planned for. Throws zero::Error for more than kMostTokens tokens a
/// rank, for activations that cannot be counted, and as plan_meshes() does.
Plan make_plan(const Request& request);

/// The stage to take of `stages`, or why none fits. Part of make_plan().
Choice choose(const Request& request, const std::vector<StagePlan>& stages);

/// Which stage to take for models, ranks, memories, links and batches of several sizes, as a table;
/// of the next best, what it has more or less than that. All else is that of `request`.
std::string scenarios(Request request);

/// For a terminal of 100 columns.
std::string to_text(const Plan& plan);
/// Everything in bytes and seconds, and the points of the curve of memory against communication at
/// several world sizes, which plot_plan.py draws.
base::Json to_json(const Plan& plan);

}  // namespace zero::plan
