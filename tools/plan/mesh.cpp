#include "mesh.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include <zero/base/error.hpp>
#include <zero/distributed/communicator.hpp>

#include "planner.hpp"

namespace zero::plan {
namespace {

std::int64_t divided(std::int64_t elements, std::int64_t by) { return (elements + by - 1) / by; }

// 0 where the shape does not say.
std::int64_t embedding_of(const Model& model) {
  return std::min(model.root, model.shape.vocabulary * model.shape.hidden);
}

// Of a data rank in a step.
std::int64_t samples_on(const Request& request, const Mesh& mesh) {
  return request.batch * mesh.tensor * mesh.pipeline;
}

std::int64_t micro_batches_on(const Request& request, const Mesh& mesh) {
  return request.mesh.micro_batches.value_or(mesh.pipeline == 1 ? 1 : samples_on(request, mesh));
}

// One pipeline stage of one mesh.
struct Place {
  const Request& request;
  const Mesh& mesh;
  std::int64_t stage;
  const ModelPart part = part_of(request.model, mesh, stage);
  const Shape& shape = part.model.shape;
  const std::int64_t micro_batches = micro_batches_on(request, mesh);
  const std::int64_t tokens = samples_on(request, mesh) * request.sequence;
  // Micro-batches that have had forward and not yet backward.
  const std::int64_t in_flight =
      request.mesh.gpipe ? micro_batches : std::min(mesh.pipeline - stage, micro_batches);
  const bool first = stage == 0;
  const bool last = stage == mesh.pipeline - 1;
  const bool tied = mesh.pipeline > 1 && is_tied(request.model);
  const bool recomputes = request.recompute == Recompute::kLayers;
  // Elements of a token in the residual stream.
  const std::int64_t stream =
      divided(shape.hidden, request.mesh.sequence_parallel ? mesh.tensor : 1);

  // Of so many elements a token, in so many micro-batches.
  std::int64_t bytes(std::int64_t elements, std::int64_t count) const {
    return token_bytes(elements, count * (tokens / micro_batches), request.policy.parameter);
  }
  std::int64_t activations() const;
  std::int64_t transients(Stage zero, std::int64_t of_stage) const;
  double sent_to_tensor_ranks() const;
  double sent_to_stages() const;
};

// Tensor ranks divide what is as wide as attention or the MLP, which leaves s b h (8 + 24/T) bytes
// a layer in 2-byte types; Korthikanti et al. have 10 + 24/T with dropout masks. A cut sequence
// divides the inputs of the two norms as well. Their outputs are kept whole here; the paper gathers
// them again in backward, which makes 32/T. A checkpoint keeps its input (2), or 1/T of it.
std::int64_t Place::activations() const {
  const std::int64_t layer = layer_elements(shape) - 2 * (shape.hidden - stream);
  const std::int64_t input =
      request.mesh.partition_activations ? divided(shape.hidden, mesh.tensor) : stream;
  // The logits of each micro-batch and the gradient of one.
  std::int64_t sum =
      bytes(shape.layers * (recomputes ? input : layer) + shape.vocabulary, in_flight) +
      bytes((recomputes ? layer : 0) + shape.vocabulary, 1);
  if (tied && last) {
    // Input and output of the head wait for the embedding's gradient (06_device_mesh/pipeline.md).
    const std::int64_t waiting = std::min(mesh.pipeline, micro_batches);
    sum += bytes(shape.hidden, waiting) +
           bytes(shape.vocabulary, std::max<std::int64_t>(0, waiting - in_flight));
  }
  return sum;
}

// `of_stage`: those of StagePlan, which knows one axis and one micro-batch.
std::int64_t Place::transients(Stage zero, std::int64_t of_stage) const {
  std::int64_t sum = of_stage == 0 && mesh.ranks() > 1 ? kReductionScratch : of_stage;
  if (micro_batches > 1 && zero >= Stage::kZero2) {
    const Model& model = part.model;
    const std::int64_t more = model.parameters - model.root - model.largest_unit();
    sum += (more - more / mesh.shards) * request.policy.gradient;
  }
  if (mesh.pipeline > 1) sum += bytes(stream, 3 + (tied && first ? in_flight : 0));
  return sum;
}

// In all-reduces of A, the bytes of [tokens, hidden], of which a rank sends 2 A (T-1)/T: four a
// layer, two more where forward runs again, one for the embedding, one for the head. To gather a
// partitioned checkpoint is half of one. A cut sequence sends as much (and gradients of norms,
// which are not counted), but the last stage gathers the gradient of a tied embedding's output for
// the first. The loss takes two numbers a token, in float32.
double Place::sent_to_tensor_ranks() const {
  const bool has_head = last && shape.vocabulary > 0;
  const double a_layer = 4 + (recomputes ? 2 : 0) + (request.mesh.partition_activations ? 0.5 : 0);
  const double moved = tied && request.mesh.sequence_parallel ? 0.5 : 0;
  const double embedding = first && request.model.root > 0 ? 1 - moved : 0;
  const double head = has_head ? 1 + moved : 0;
  const double all_reduces = a_layer * static_cast<double>(shape.layers) + embedding + head;
  const double four =
      tensor_parallel_sent(tokens, shape.hidden, request.policy.parameter, mesh.tensor);
  const double loss = has_head ? 8 * static_cast<double>(mesh.tensor - 1) : 0;
  return all_reduces / 4 * four + loss * static_cast<double>(tokens);
}

// If the embedding is the head, the first stage sends the gradient of its output to the last, and
// the last one the new weight to the first.
double Place::sent_to_stages() const {
  if (mesh.pipeline == 1) return 0;
  const int directions = (last ? 0 : 1) + (first && !tied ? 0 : 1);
  const std::int64_t weight = tied && last ? divided(embedding_of(request.model), mesh.tensor) : 0;
  const double elements = directions * static_cast<double>(tokens) * static_cast<double>(stream) +
                          static_cast<double>(weight);
  return elements * static_cast<double>(request.policy.parameter);
}

// Why the model cannot be trained on a mesh; empty if it can.
std::string refusal(const Request& request, const Mesh& mesh) {
  const std::int64_t layers = std::ssize(request.model.units);
  if (mesh.pipeline > layers) {
    return fmt::format("--pp {}: the model has {} layers, and every stage needs one", mesh.pipeline,
                       layers);
  }
  if (mesh.pipeline > 1 && request.model.llama && request.model.llama->classes > 0) {
    return fmt::format("--pp {}: the model is a classifier, and a pipeline trains language models",
                       mesh.pipeline);
  }
  try {
    if (request.model.llama) {
      nn::check_tensor_parallel(*request.model.llama, static_cast<int>(mesh.tensor));
    }
  } catch (const Error& error) {
    return fmt::format("--tp {}: {}", mesh.tensor, error.what());
  }
  if (request.mesh.sequence_parallel && request.sequence % mesh.tensor != 0) {
    return fmt::format("--sequence-parallel: --tp {} does not divide --sequence {}", mesh.tensor,
                       request.sequence);
  }
  const std::int64_t m = micro_batches_on(request, mesh), samples = samples_on(request, mesh);
  if (samples % m == 0) return "";
  return fmt::format(
      "--micro-batches {} does not divide the {} samples of a data rank (--batch {} x --tp {} x "
      "--pp {})",
      m, samples, request.batch, mesh.tensor, mesh.pipeline);
}

// A rank alone shares nothing: that is DDP. A pipeline cannot have ZeRO-3 if its first stage has a
// copy of the head, which PipelineTrainer refuses.
std::vector<Stage> stages_on(const Request& request, const Mesh& mesh) {
  std::vector<Stage> stages;
  for (const Stage stage : kStages) {
    if ((stage == Stage::kDdp) != (mesh.shards == 1)) continue;
    if (stage == Stage::kZero3 && mesh.pipeline > 1 && is_tied(request.model)) continue;
    if (mesh.data() == 1 || request.stage.value_or(stage) == stage) stages.push_back(stage);
  }
  return stages;
}

// Sizes that an axis may have: those that divide n, or the given one if it does.
std::vector<std::int64_t> sizes(std::int64_t n, std::optional<std::int64_t> given) {
  std::vector<std::int64_t> result;
  for (std::int64_t d = given.value_or(1); d <= given.value_or(n); ++d) {
    if (n % d == 0) result.push_back(d);
  }
  return result;
}

void add_rows(const Request& request, const Mesh& mesh, std::vector<MeshPlan>& rows) {
  std::vector<MeshPlan> of_mesh;
  for (const Stage stage : stages_on(request, mesh)) {
    of_mesh.push_back(plan_mesh(request, mesh, stage));
  }
  if (!request.mesh.all) {
    rows.insert(rows.end(), of_mesh.begin(), of_mesh.end());
  } else if (!of_mesh.empty()) {
    const auto fits = [](const MeshPlan& plan) { return plan.fits.value_or(false); };
    const auto lowest = std::ranges::find_if(of_mesh, fits);
    rows.push_back(lowest == of_mesh.end() ? of_mesh.back() : *lowest);
  }
}

void check(const Request& request) {
  const MeshRequest& mesh = request.mesh;
  if (!mesh.all && !mesh.tensor && !mesh.pipeline && !mesh.shards) {
    throw Error(
        "--micro-batches, --pipeline-schedule, --sequence-parallel and --partition-activations are "
        "for a mesh: add --tp, --pp, --shard-size or --meshes");
  }
  if (mesh.all && request.world_size > kMostRanksOfMeshes) {
    throw Error(fmt::format("--meshes is for at most {} ranks, and --world-size is {}",
                            kMostRanksOfMeshes, request.world_size));
  }
  if (mesh.partition_activations &&
      (request.recompute == Recompute::kNone || mesh.sequence_parallel)) {
    throw Error(
        "--partition-activations divides the inputs that --recompute keeps, and that "
        "--sequence-parallel has divided already: take it with the first and without the second");
  }
}

}  // namespace

std::string text(const Mesh& mesh) {
  return fmt::format("{}x{}x{}x{}", mesh.replicas, mesh.shards, mesh.tensor, mesh.pipeline);
}

bool is_tied(const Model& model) {
  const std::int64_t embedding = embedding_of(model);
  return embedding > 0 && model.root < 2 * embedding;
}

ModelPart part_of(const Model& model, const Mesh& mesh, std::int64_t stage) {
  const bool first = stage == 0, last = stage == mesh.pipeline - 1;
  const bool tied = mesh.pipeline > 1 && is_tied(model);
  // Every tensor rank has all of a norm.
  const auto cut = [&](std::int64_t elements, std::int64_t norms) {
    const std::int64_t whole = model.llama ? std::min(elements, norms) : 0;
    return divided(elements - whole, mesh.tensor) + whole;
  };
  const std::int64_t layers = std::ssize(model.units);
  const auto first_layer = [&](std::int64_t s) {
    return dist::piece_begin(layers, static_cast<int>(s), static_cast<int>(mesh.pipeline));
  };
  const Shape& s = model.shape;
  ModelPart part;
  Model& mine = part.model;
  for (std::int64_t i = first_layer(stage); i < first_layer(stage + 1); ++i) {
    mine.units.push_back(cut(model.units[static_cast<std::size_t>(i)], 2 * s.hidden));
  }
  const std::int64_t embedding = mesh.pipeline > 1 ? embedding_of(model) : 0;
  if (first) (tied ? part.frozen : mine.root) = cut(embedding, 0);
  if (last) mine.root += cut(model.root - (tied ? 0 : embedding), s.hidden);
  mine.parameters = std::accumulate(mine.units.begin(), mine.units.end(), mine.root);
  mine.shape = {.layers = divided(s.layers * std::ssize(mine.units), layers),
                .hidden = s.hidden,
                .attention = divided(s.attention, mesh.tensor),
                .mlp = divided(s.mlp, mesh.tensor),
                .mlp_tensors = s.mlp_tensors,
                .vocabulary = last ? divided(s.vocabulary, mesh.tensor) : 0};
  return part;
}

MeshPlan plan_mesh(const Request& request, const Mesh& mesh, Stage stage) {
  MeshPlan plan;
  plan.mesh = mesh;
  plan.stage = stage;
  plan.micro_batches = micro_batches_on(request, mesh);
  const auto m = static_cast<double>(plan.micro_batches),
             others = static_cast<double>(mesh.pipeline - 1);
  plan.bubble = others / (m + others);
  Request of_part = request;
  for (std::int64_t s = 0; s < mesh.pipeline; ++s) {
    const Place place{request, mesh, s};
    of_part.model = place.part.model;
    StagePlan one = plan_stage(of_part, stage, /*offloaded=*/false, mesh.shards, /*lookahead=*/0);
    one.states.parameters += place.part.frozen * request.policy.parameter;
    one.transients = place.transients(stage, one.transients);
    one.activations = place.activations();
    if (s == 0 || one.total() > plan.total()) {
      plan.fullest = s;
      plan.states = one.states;
      plan.transients = one.transients;
      plan.activations = one.activations;
    }
    // Gradients are added up over micro-batches and reduced once; ZeRO-3 gathers in each.
    if (stage == Stage::kZero3) one.sent.parameters_gathered *= m;
    const double shard = copies(of_part.model.parameters, request.policy).gradients /
                         static_cast<double>(mesh.shards);
    const Wire sent{one.sent.total(), 2 * shard * redundant_share(mesh.replicas),
                    place.sent_to_tensor_ranks(), place.sent_to_stages()};
    if (s == 0 || sent.total() > plan.sent.total()) plan.sent = sent;
  }
  if (request.memory) plan.fits = plan.total() <= request.memory->bytes;
  return plan;
}

std::vector<MeshPlan> plan_meshes(const Request& request) {
  check(request);
  const MeshRequest& asked = request.mesh;
  const std::optional<std::int64_t> other =
      asked.all ? std::nullopt : std::optional<std::int64_t>(1);
  std::vector<MeshPlan> rows;
  std::string reason;
  for (const std::int64_t p : sizes(request.world_size, asked.pipeline ? asked.pipeline : other)) {
    const std::int64_t of_stage = request.world_size / p;
    for (const std::int64_t t : sizes(of_stage, asked.tensor ? asked.tensor : other)) {
      const std::int64_t data = of_stage / t;
      for (const std::int64_t s : sizes(data, asked.shards)) {
        if (!asked.all && !asked.shards && s != 1 && s != data) continue;
        const Mesh mesh{data / s, s, t, p};
        const std::string refused = refusal(request, mesh);
        if (refused.empty()) add_rows(request, mesh, rows);
        if (!refused.empty()) reason = refused;
      }
    }
  }
  if (!rows.empty()) return rows;
  if (!reason.empty()) throw Error(reason);
  throw Error(fmt::format(
      "--world-size {} has no mesh with this --tp, --pp, --shard-size and --stage: each size must "
      "divide the ranks that the others leave, groups of one rank share nothing (ddp), and a "
      "pipeline of a model whose head is its embedding has no zero3",
      request.world_size));
}

}  // namespace zero::plan
