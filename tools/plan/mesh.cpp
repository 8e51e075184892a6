#include "mesh.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include <zero/base/error.hpp>
#include <zero/distributed/communicator.hpp>

#include "planner.hpp"

namespace zero::plan {
namespace {

std::int64_t divided(std::int64_t elements, std::int64_t by) { return (elements + by - 1) / by; }

// 0 if the shape does not say.
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
      bytes(shape.layers * (request.recompute ? input : layer) + shape.vocabulary, in_flight) +
      bytes((request.recompute ? layer : 0) + shape.vocabulary, 1);
  if (tied && last) {
    // Input and output of the head wait for the embedding's gradient (09_pipeline/README.md).
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
// layer, two more if forward runs again, one for the embedding, one for the head. To gather a
// partitioned checkpoint is half of one. A cut sequence sends as much (and gradients of norms,
// which are not counted), but the last stage gathers the gradient of a tied embedding's output for
// the first. The loss takes two numbers a token, in float32.
double Place::sent_to_tensor_ranks() const {
  const bool has_head = last && shape.vocabulary > 0;
  const double a_layer =
      4 + (request.recompute ? 2 : 0) + (request.mesh.partition_activations ? 0.5 : 0);
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

template <class... Args>
void refuse_if(bool wrong, fmt::format_string<Args...> text, Args&&... args) {
  if (wrong) throw Error(fmt::format(text, std::forward<Args>(args)...));
}

void check_options(const Request& request) {
  const MeshRequest& mesh = request.mesh;
  refuse_if(!mesh.tensor && !mesh.pipeline && !mesh.shards,
            "--micro-batches, --pipeline-schedule, --sequence-parallel and --partition-activations "
            "are for a mesh: add --tp, --pp or --shard-size");
  refuse_if(mesh.partition_activations && (!request.recompute || mesh.sequence_parallel),
            "--partition-activations divides the inputs that --recompute keeps, and that "
            "--sequence-parallel has divided already: take it with the first and without the "
            "second");
}

// Whether the model can be trained on the mesh.
void check_model(const Request& request, const Mesh& mesh) {
  const std::int64_t layers = std::ssize(request.model.units);
  const std::optional<nn::LlamaConfig>& llama = request.model.llama;
  refuse_if(mesh.pipeline > layers, "--pp {}: the model has {} layers, and every stage needs one",
            mesh.pipeline, layers);
  refuse_if(mesh.pipeline > 1 && llama && llama->classes > 0,
            "--pp {}: the model is a classifier, and a pipeline trains language models",
            mesh.pipeline);
  try {
    if (llama) nn::check_tensor_parallel(*llama, static_cast<int>(mesh.tensor));
  } catch (const Error& error) {
    throw Error(fmt::format("--tp {}: {}", mesh.tensor, error.what()));
  }
  refuse_if(request.mesh.sequence_parallel && request.sequence % mesh.tensor != 0,
            "--sequence-parallel: --tp {} does not divide --sequence {}", mesh.tensor,
            request.sequence);
  const std::int64_t m = micro_batches_on(request, mesh), samples = samples_on(request, mesh);
  refuse_if(samples % m != 0,
            "--micro-batches {} does not divide the {} samples of a data rank (--batch {} x --tp "
            "{} x --pp {})",
            m, samples, request.batch, mesh.tensor, mesh.pipeline);
}

}  // namespace

std::string text(const Mesh& mesh) {
  return fmt::format("{}x{}x{}x{}", mesh.replicas, mesh.shards, mesh.tensor, mesh.pipeline);
}

bool is_tied(const Model& model) {
  return embedding_of(model) > 0 && model.root < 2 * embedding_of(model);
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
  const std::int64_t micro_batches = micro_batches_on(request, mesh);
  const auto m = static_cast<double>(micro_batches),
             others = static_cast<double>(mesh.pipeline - 1);
  MeshPlan plan{{}, mesh, stage, micro_batches};
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
      static_cast<Held&>(plan) = one;
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
  check_options(request);
  const std::int64_t tensor = request.mesh.tensor.value_or(1),
                     pipeline = request.mesh.pipeline.value_or(1),
                     data = request.world_size / (tensor * pipeline),
                     shards = request.mesh.shards.value_or(data);
  std::vector<MeshPlan> rows;
  for (const Stage stage : kStages) {
    // DDP shares nothing. A pipeline cannot have ZeRO-3 if its first stage has a copy of the head,
    // which PipelineTrainer refuses.
    const std::int64_t s = stage == Stage::kDdp ? request.mesh.shards.value_or(1) : shards;
    const Mesh mesh{data / std::max<std::int64_t>(1, s), s, tensor, pipeline};
    if (mesh.ranks() != request.world_size || (stage == Stage::kDdp) != (s == 1)) continue;
    check_model(request, mesh);
    if (stage == Stage::kZero3 && pipeline > 1 && is_tied(request.model)) continue;
    if (data > 1 && request.stage.value_or(stage) != stage) continue;
    rows.push_back(plan_mesh(request, mesh, stage));
  }
  refuse_if(rows.empty(),
            "--world-size {} has no mesh with this --tp, --pp, --shard-size and --stage: each size "
            "must divide the ranks that the others leave, groups of one rank share nothing (ddp), "
            "and a pipeline of a model whose head is its embedding has no zero3",
            request.world_size);
  return rows;
}

}  // namespace zero::plan
