// What a rank of a mesh holds and sends.

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include <zero/base/error.hpp>
#include <zero/distributed/communicator.hpp>

#include "planner.hpp"

namespace zero::plan {
namespace {

// 0 if the shape does not say.
std::int64_t embedding_of(const Model& model) {
  return std::min(model.root, model.shape.vocabulary * model.shape.hidden);
}

// One pipeline stage of one mesh.
struct Place {
  const Request& request;
  const Mesh& mesh;
  std::int64_t stage;
  const ModelPart part = part_of(request.model, mesh, stage);
  const Model& model = part.model;
  const Shape& shape = model.shape;
  const std::int64_t micro_batches = request.micro_batches_on(mesh);
  const std::int64_t tokens = request.samples_on(mesh) * request.sequence;
  // Micro-batches that have had forward and not yet backward (1F1B).
  const std::int64_t in_flight = std::min(mesh.pipeline - stage, micro_batches);
  const bool first = stage == 0, last = stage == mesh.pipeline - 1;
  const bool tied = mesh.pipeline > 1 && is_tied(request.model);

  // Of so many elements a token, in so many micro-batches. Throws zero::Error beyond 2^60 bytes.
  std::int64_t bytes(std::int64_t elements, std::int64_t count) const {
    const std::int64_t each = elements * request.policy.parameter;
    const std::int64_t of = count * (tokens / micro_batches);
    if (static_cast<double>(each) * static_cast<double>(of) <= 0x1p60) return each * of;
    throw Error(fmt::format(
        "{} tokens of {} bytes of activations each are more than can be counted: fewer tokens a "
        "rank are needed",
        of, each));
  }

  // Tensor ranks divide what is as wide as attention or the MLP, which leaves s b h (8 + 24/T)
  // bytes a layer in 2-byte types; Korthikanti et al. have 10 + 24/T with dropout masks. A
  // checkpoint keeps its input (2).
  std::int64_t activations() const {
    const std::int64_t layer = layer_elements(shape);
    // The logits of each micro-batch and the gradient of one.
    std::int64_t sum =
        bytes(shape.layers * (request.recompute ? shape.hidden : layer) + shape.vocabulary,
              in_flight) +
        bytes((request.recompute ? layer : 0) + shape.vocabulary, 1);
    if (tied && last) {
      // Input and output of the head wait for the embedding's gradient (09_pipeline/README.md).
      const std::int64_t waiting = std::min(mesh.pipeline, micro_batches);
      sum += bytes(shape.hidden, waiting) +
             bytes(shape.vocabulary, std::max<std::int64_t>(0, waiting - in_flight));
    }
    return sum - (on_host().host - on_host().device);
  }

  // Without a pipeline: one micro-batch is in flight.
  InputsOnHost on_host() const {
    if (!request.activations_on_host) return {};
    return inputs_on_host(shape.layers, bytes(shape.hidden, 1));
  }

  std::int64_t transients(Stage zero) const {
    if (mesh.ranks() == 1) return 0;
    // Of so many elements those that the rank does not own.
    const auto missing = [&](std::int64_t elements) { return elements - elements / mesh.shards; };
    const std::int64_t gathered = model.root + model.largest_unit();
    const Policy& policy = request.policy;
    std::int64_t sum = kReductionScratch;
    if (zero >= Stage::kZero2) sum += missing(gathered) * policy.gradient;
    if (zero >= Stage::kZero3) sum += missing(gathered) * policy.parameter;
    if (zero >= Stage::kZero2 && micro_batches > 1) {
      sum += missing(model.parameters - gathered) * policy.gradient;
    }
    if (mesh.pipeline > 1) sum += bytes(shape.hidden, 3 + (tied && first ? in_flight : 0));
    return sum;
  }

  // Gradients are added up over micro-batches and reduced once; ZeRO-3 gathers in each.
  double sent_to_data_ranks(Stage zero) const {
    const double kept = static_cast<double>(model.root) / static_cast<double>(model.parameters);
    Traffic traffic =
        sent(scheme_of(zero), copies(model.parameters, request.policy), mesh.shards, kept);
    if (zero == Stage::kZero3) traffic.parameters_gathered *= static_cast<double>(micro_batches);
    return traffic.total();
  }

  double sent_to_replicas() const {
    const double gradients = copies(model.parameters, request.policy).gradients;
    return 2 * gradients / static_cast<double>(mesh.shards) * redundant_share(mesh.replicas);
  }

  // In all-reduces of A, the bytes of [tokens, hidden], of which a rank sends 2 A (T-1)/T: four a
  // layer, two more if forward runs again, one for the embedding, one for the head. The loss takes
  // two numbers a token, in float32.
  double sent_to_tensor_ranks() const {
    const bool has_head = last && shape.vocabulary > 0;
    const std::int64_t all_reduces = (request.recompute ? 6 : 4) * shape.layers +
                                     (first && request.model.root > 0 ? 1 : 0) + (has_head ? 1 : 0);
    const double four =
        tensor_parallel_sent(tokens, shape.hidden, request.policy.parameter, mesh.tensor);
    const std::int64_t loss = has_head ? 8 * (mesh.tensor - 1) * tokens : 0;
    return static_cast<double>(all_reduces) / 4 * four + static_cast<double>(loss);
  }

  // If the embedding is the head, the first stage sends the gradient of its output to the last, and
  // the last one the new weight to the first.
  double sent_to_stages() const {
    if (mesh.pipeline == 1) return 0;
    const int directions = (last ? 0 : 1) + (first && !tied ? 0 : 1);
    const std::int64_t weight = tied && last ? share(embedding_of(request.model), mesh.tensor) : 0;
    const double elements =
        directions * static_cast<double>(tokens) * static_cast<double>(shape.hidden) +
        static_cast<double>(weight);
    return elements * static_cast<double>(request.policy.parameter);
  }
};

}  // namespace

Mesh data_mesh(Stage stage, std::int64_t ranks) {
  return stage == Stage::kDdp ? Mesh{.replicas = ranks} : Mesh{.shards = ranks};
}

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
    return share(elements - whole, mesh.tensor) + whole;
  };
  const std::int64_t layers = std::ssize(model.units);
  const auto first_layer = [&](std::int64_t s) {
    return model.units.begin() +
           dist::piece_begin(layers, static_cast<int>(s), static_cast<int>(mesh.pipeline));
  };
  const Shape& s = model.shape;
  ModelPart part;
  Model& mine = part.model;
  mine.units = {first_layer(stage), first_layer(stage + 1)};
  for (std::int64_t& unit : mine.units) unit = cut(unit, 2 * s.hidden);
  const std::int64_t embedding = mesh.pipeline > 1 ? embedding_of(model) : 0;
  if (first) (tied ? part.frozen : mine.root) = cut(embedding, 0);
  if (last) mine.root += cut(model.root - (tied ? 0 : embedding), s.hidden);
  mine.parameters = std::accumulate(mine.units.begin(), mine.units.end(), mine.root);
  mine.shape = s;
  mine.shape.layers = share(s.layers * std::ssize(mine.units), layers);
  mine.shape.attention = share(s.attention, mesh.tensor);
  mine.shape.mlp = share(s.mlp, mesh.tensor);
  mine.shape.vocabulary = last ? share(s.vocabulary, mesh.tensor) : 0;
  return part;
}

StagePlan plan_stage(const Request& request, Stage stage, const Mesh& mesh) {
  StagePlan plan{{}, stage, mesh, request.micro_batches_on(mesh)};
  for (std::int64_t s = 0; s < mesh.pipeline; ++s) {
    const Place place{request, mesh, s};
    const std::int64_t parameters = place.model.parameters;
    Held held{model_states(parameters, request.policy, stage, mesh.shards), place.transients(stage),
              place.activations(), place.on_host()};
    held.states.parameters += place.part.frozen * request.policy.parameter;
    if (s == 0 || held.total() > plan.total()) {
      plan.fullest = s;
      static_cast<Held&>(plan) = held;
    }
    const Wire sent{place.sent_to_data_ranks(stage), place.sent_to_replicas(),
                    place.sent_to_tensor_ranks(), place.sent_to_stages()};
    if (s == 0 || sent.total() > plan.sent.total()) plan.sent = sent;
  }
  return plan;
}

}  // namespace zero::plan
