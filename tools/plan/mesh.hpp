#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model.hpp"
#include "traffic.hpp"

/// Ranks as a mesh of data, tensor and pipeline axes: what a rank holds, and what it sends along
/// each axis. A rank has a part of the model, and ZeRO works on that part along the data axis. So
/// the formulas of states.hpp and traffic.hpp are those of the part.
///
/// Sources: MiCS (Zhang et al., arXiv:2205.00119) and PyTorch FSDP (arXiv:2304.11277), section
/// 3.2.2, for replicas and shards; Megatron-LM (arXiv:1909.08053), section 3, for the four
/// all-reduces of a layer; Korthikanti et al. (arXiv:2205.05198), section 4, for activations;
/// Narayanan et al. (arXiv:2104.04473), section 2.2, for schedules.
namespace zero::plan {

/// N = R x S x T x p ranks.
struct Mesh {
  std::int64_t replicas = 1;  ///< R: groups that hold copies of each other
  std::int64_t shards = 1;    ///< S: ranks of a group, which share its model states
  std::int64_t tensor = 1;    ///< T: ranks that split each layer and work on one batch
  std::int64_t pipeline = 1;  ///< p: stages of a pipeline

  std::int64_t data() const { return replicas * shards; }
  std::int64_t ranks() const { return data() * tensor * pipeline; }
};
/// "1x4x2x1": R x S x T x p.
std::string text(const Mesh& mesh);

/// What is asked about meshes. Request::batch is in samples a rank here too: a data rank has
/// batch x T x p samples in a step, so that all meshes of N ranks do the same work.
struct MeshRequest {
  /// T, p and S. Without the first two they are 1; without S all data ranks share model states.
  std::optional<std::int64_t> tensor, pipeline, shards;
  /// That a data rank cuts its samples into. Without it 1, and in a pipeline one for each sample.
  std::optional<std::int64_t> micro_batches;
  bool gpipe = false;                  ///< all forwards before all backwards, in place of 1F1B
  bool sequence_parallel = false;      ///< the residual stream is cut along the sequence
  bool partition_activations = false;  ///< tensor ranks keep 1/T of a checkpointed input (Pa)

  bool operator==(const MeshRequest&) const = default;
};

/// What a rank of a mesh has of a model, in elements rounded up.
struct ModelPart {
  Model model;              ///< what it trains: 1/T of all but norms, of the layers of its stage
  std::int64_t frozen = 0;  ///< besides: the first stage's copy of a tied embedding
};
/// Of pipeline stage `stage`. Stages have equal numbers of layers, or the first ones have one more.
/// The first stage has the embedding, the last one the rest of the root, and a tied embedding.
ModelPart part_of(const Model& model, const Mesh& mesh, std::int64_t stage);

/// Whether the output head is the embedding: a root of less than two embeddings.
bool is_tied(const Model& model);

/// Bytes that a rank sends in a step, by axis (docs/communication.md has the table).
struct Wire {
  double shards = 0;    ///< inside a group: what the stage of ZeRO sends among S ranks
  double replicas = 0;  ///< between groups: the gradient shard all-reduced, 2 (V/S) (R-1)/R
  double tensor = 0;    ///< all-reduces of activations, four a layer, and two numbers a token
  double pipeline = 0;  ///< activations to the next stage, and their gradients back
  double total() const { return shards + replicas + tensor + pipeline; }
};

/// One stage of ZeRO on a mesh. DDP has S = 1, and all data ranks are replicas.
struct MeshPlan : Held {
  Mesh mesh;
  Stage stage = Stage::kDdp;
  std::int64_t micro_batches = 1;
  std::int64_t fullest = 0;  ///< the pipeline stage whose ranks hold most: Held is of one of these
  Wire sent;                 ///< by a rank of the pipeline stage that sends most
  double bubble = 0;         ///< (p-1)/(m+p-1) of a step, in which a stage does nothing
};

struct Request;

/// `stage` on one mesh of the ranks. For a request that make_plan() takes, and a mesh that the
/// model can be cut for.
MeshPlan plan_mesh(const Request& request, const Mesh& mesh, Stage stage);

/// A row for each stage on the mesh of Request::mesh. Part of make_plan(). Throws zero::Error that
/// names option and numbers: for axes that do not divide the ranks, a model that the tensor axis
/// cannot share, more stages than layers, micro-batches that do not divide the samples, a stage
/// that is not possible, and options of a mesh without one.
std::vector<MeshPlan> plan_meshes(const Request& request);

}  // namespace zero::plan
