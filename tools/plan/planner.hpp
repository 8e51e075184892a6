#pragma once

#include <optional>
#include <string>
#include <vector>

#include "hosts.hpp"
#include "offload.hpp"
#include "quantity.hpp"
#include "timing.hpp"

/// Which stage to take, and what it costs.
///
/// Ranks are a mesh of data, tensor and pipeline axes. A rank has a part of the model, and ZeRO
/// works on that part along the data axis. So the formulas of stages.hpp are those of the part.
///
/// Sources: MiCS (Zhang et al., arXiv:2205.00119) and PyTorch FSDP (arXiv:2304.11277), section
/// 3.2.2, for replicas and shards; Megatron-LM (arXiv:1909.08053), section 3, for the four
/// all-reduces of a layer; Korthikanti et al. (arXiv:2205.05198), section 4, for activations;
/// Narayanan et al. (arXiv:2104.04473), section 2.2, for schedules.
namespace zero::plan {

/// N = R x S x n x p ranks.
struct Mesh {
  std::int64_t replicas = 1;  ///< R: groups that hold copies of each other
  std::int64_t shards = 1;    ///< S: ranks of a group, which share its model states
  std::int64_t tensor = 1;    ///< n: ranks that split each layer and work on one batch
  std::int64_t pipeline = 1;  ///< p: stages of a pipeline

  std::int64_t data() const { return replicas * shards; }
  std::int64_t ranks() const { return data() * tensor * pipeline; }
};
/// The mesh of `ranks` data ranks under `stage`: copies of each other, or one group.
Mesh data_mesh(Stage stage, std::int64_t ranks);
/// "1x4x2x1": R x S x n x p.
std::string text(const Mesh& mesh);

/// What a rank of a mesh has of a model, in elements rounded up.
struct ModelPart {
  Model model;              ///< what it trains: 1/n of all but norms, of the layers of its stage
  std::int64_t frozen = 0;  ///< besides: the first stage's copy of a tied embedding
};
/// Of pipeline stage `stage`. Stages have equal numbers of layers, or the first ones have one more.
/// The first stage has the embedding, the last one the rest of the root, and a tied embedding.
ModelPart part_of(const Model& model, const Mesh& mesh, std::int64_t stage);

/// Whether the output head is the embedding: a root of less than two embeddings.
bool is_tied(const Model& model);

/// What is asked about meshes. Request::batch is in samples a rank here too: a data rank has
/// batch x n x p samples in a step, so that all meshes of N ranks do the same work.
struct MeshRequest {
  /// T, p and S. Without the first two they are 1; without S all data ranks share model states.
  std::optional<std::int64_t> tensor, pipeline, shards;
  /// That a data rank cuts its samples into. Without it 1, and in a pipeline one for each sample.
  std::optional<std::int64_t> micro_batches;

  bool operator==(const MeshRequest&) const = default;
};

/// Upper limits of a request, so that bytes and tokens of all ranks stay within 63 bits: samples a
/// rank, tokens a sample, and the product of the two.
inline constexpr std::int64_t kLargestBatch = 1 << 20, kLongestSequence = 1 << 24,
                              kMostTokens = std::int64_t{1} << 40;

/// Scratch of a rank-ordered reduction: at most two windows of 16 MiB (docs/communication.md).
inline constexpr std::int64_t kReductionScratch = 32 * kMiB;

/// All that the fullest rank holds in a step, in bytes.
struct Held {
  States states = {};
  /// What a step needs besides, in whole bytes and never too little: the scratch of a reduction;
  /// from ZeRO-2 on the gradients of the root and of one unit before they have left; under ZeRO-3
  /// the parameters of the root and of one unit, gathered. What the rank owns of them is not
  /// counted twice. Nothing at one rank. On a mesh also messages between stages, and from ZeRO-2 on
  /// the whole gradients of several micro-batches, which are added up before they are reduced.
  std::int64_t transients = 0;
  /// What forward keeps for backward: of each layer layer_elements(), or with `recompute` its input
  /// and everything of one layer; of a language model the logits and their gradient. In a pipeline
  /// of the micro-batches that are in flight.
  std::int64_t activations = 0;
  InputsOnHost inputs = {};  ///< if they leave the device; `activations` has what stays

  /// An upper bound: activations shrink while gradients grow, so the peak is lower.
  std::int64_t total() const { return states.total() + transients + activations; }
};

/// What is asked.
struct Request {
  Model model;
  Policy policy = mixed();
  std::int64_t world_size = 8;
  std::int64_t batch = 1;        ///< samples a rank
  std::int64_t sequence = 2048;  ///< tokens a sample
  bool recompute = false;  ///< layers keep only their input and compute the rest again in backward
  bool activations_on_host = false;  ///< with `recompute`: these inputs leave the device
  Machine machine;
  std::optional<Memory> memory;  ///< of one rank's device
  MeshRequest mesh;
  HostRequest hosts;

  /// Of a rank in a step.
  std::int64_t tokens() const { return batch * sequence; }
  /// Of a data rank in a step, and the micro-batches that it cuts them into.
  std::int64_t samples_on(const Mesh& m) const { return batch * m.tensor * m.pipeline; }
  std::int64_t micro_batches_on(const Mesh& m) const {
    return mesh.micro_batches.value_or(m.pipeline == 1 ? 1 : samples_on(m));
  }
  bool has_mesh() const { return mesh != MeshRequest{}; }
  /// Whether no memory was given or this fits it.
  bool fits(const Held& held) const { return !memory || held.total() <= memory->bytes; }
};

/// Bytes that a rank sends in a step, by axis (docs/formulas.md has the tables).
struct Wire {
  double shards = 0;    ///< inside a group: what the stage of ZeRO sends among S ranks
  double replicas = 0;  ///< between groups: the gradient shard all-reduced, 2 (V/S) (R-1)/R
  double tensor = 0;    ///< all-reduces of activations, four a layer, and two numbers a token
  double pipeline = 0;  ///< activations to the next stage, and their gradients back
  double total() const { return shards + replicas + tensor + pipeline; }
};

/// One stage of ZeRO on a mesh. DDP has S = 1, and all data ranks are replicas.
struct StagePlan : Held {
  Stage stage = Stage::kDdp;
  Mesh mesh = {};
  std::int64_t micro_batches = 1;
  std::int64_t fullest = 0;  ///< the pipeline stage whose ranks hold most: Held is of one of these
  Wire sent = {};            ///< by a rank of the pipeline stage that sends most
  /// Optimizer states are in host memory (ZeRO-Offload, arXiv:2101.06840, section 3: parameters and
  /// gradients stay on the device). ZeRO-3 mixed: 4 P/N.
  bool offloaded = false;
  /// Of data ranks alone; not known of a mesh.
  StepTime time = {};
  std::optional<std::int64_t> break_even_batch = {};  ///< nothing hidden

  /// (p-1)/(m+p-1) of a step, in which a pipeline stage does nothing.
  double bubble() const {
    const auto others = static_cast<double>(mesh.pipeline - 1);
    return others / (static_cast<double>(micro_batches) + others);
  }
};

/// The lookahead of ZeRO-3.
struct LookaheadPlan {
  double gather = 0;        ///< seconds, the largest unit
  double compute = 0;       ///< seconds, its forward
  std::int64_t needed = 0;  ///< k*, the smallest with which a forward waits least
  /// The k of step times: as many units as fit beside all of ZeRO-3, if it fits.
  std::int64_t used = 0;
  bool always_waits = false;  ///< all gathers together take longer than computing
};

/// Steps of which one takes at most this part longer count as equally long.
inline constexpr double kAsQuick = 0.01;

/// Communication over compute that counts as little, for the break-even batch.
inline constexpr double kBreakEvenShare = 0.05;

/// The answer.
struct Choice {
  /// Of the stages that fit the lowest whose step is as quick as the quickest's, and the same of
  /// the others. Nothing if none fits or no memory was given.
  std::optional<StagePlan> taken = {}, next = {};
  std::string says = {};
  /// If the answer is no: from how many ranks ZeRO-3 would fit, model states alone and with
  /// transients and activations. Nothing: with no number of ranks.
  std::optional<std::int64_t> ranks_for_states = {}, ranks_for_all = {};
};

struct Plan {
  Request request;
  /// All, then ZeRO-3 with its optimizer offloaded; if a mesh was asked for, those on it.
  std::vector<StagePlan> stages = {};
  LookaheadPlan lookahead = {};
  Choice choice = {};                ///< of data ranks alone
  std::vector<HostPlan> hosts = {};  ///< nothing if ranks_per_host was not given

  /// For printing: that of the memory, else by size.
  Unit unit() const;
  /// Whether no memory was given or something fits it.
  bool feasible() const;
};

/// One stage on one mesh, without times. For a request that make_plan() takes, and a mesh that the
/// model can be cut for.
StagePlan plan_stage(const Request& request, Stage stage, const Mesh& mesh);

/// A step computes 6 operations for each parameter and token, 8 if layers run again in backward
/// (`recompute`). ZeRO-3 has the given lookahead. The passes: ZeRO-3 gathers each unit and the root
/// in forward and again in backward (the root only once) and reduces in backward. DDP, ZeRO-1 and
/// ZeRO-2 reduce each unit in backward while the next computes; stages 1 and 2 gather all updated
/// parameters from the beginning of forward on (ShardingOptions::defer_parameter_gather). The root
/// is first in forward and last in backward; its computing is done with it.
StepTime step_time(const Request& request, Stage stage, std::int64_t lookahead);

/// Plans. Comparisons with the memory are made in whole bytes, and a stage fits only if model
/// states, transients and the estimate of activations together do. Every number of the request is
/// above 0 and at most its upper limit. Throws zero::Error that names option and numbers: for more
/// than kMostTokens tokens a rank, for activations that cannot be counted, for axes of a mesh that
/// do not divide the ranks, a model that the tensor axis cannot share, more pipeline stages than
/// layers, micro-batches that do not divide the samples, a stage that is not possible, and as
/// plan_hosts() does.
Plan make_plan(const Request& request);

}  // namespace zero::plan
