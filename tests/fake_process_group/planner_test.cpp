// The planner's formulas of a mesh beside the library's own: what strategies and stages say that a
// rank holds and sends, what a rank of a fake process group is counted to send in a step, and what
// a layer keeps for backward.
#include <ATen/ops/arange.h>
#include <fmt/format.h>

#include <cstdlib>
#include <map>

#include <tests/support/pipeline_clock.hpp>
#include <tests/support/states.hpp>
#include <tools/ladder/pipeline_trainer.hpp>
#include <tools/plan/planner.hpp>
#include <tools/support/fake_backend.hpp>
#include <zero/distributed/mesh.hpp>
#include <zero/memory/charge.hpp>
#include <zero/nn/parameters.hpp>
#include <zero/optim/adamw.hpp>

#include "unpadded.hpp"

namespace zero::testing {
namespace {

using dist::Purpose;
using plan::Stage;

struct Settings {
  bool tied = true;
  bool recompute = false;
  std::int64_t micro_batches = 1;
};

std::string text(const Settings& s) {
  return fmt::format("tied {}, recompute {}, {} micro-batches", s.tied, s.recompute,
                     s.micro_batches);
}

plan::Request request_of(const Settings& s) {
  plan::Request request;
  request.model = plan::model_of(unpadded(s.tied), "unpadded");
  request.policy = plan::fp32();
  request.batch = s.micro_batches;
  request.sequence = 16;
  request.recompute = s.recompute;
  request.mesh.micro_batches = s.micro_batches;
  return request;
}

// Bytes that a rank sends along each axis in a step.
struct SentOnMesh {
  std::int64_t data = 0, tensor = 0, pipeline = 0;
  std::int64_t total() const { return data + tensor + pipeline; }
};

// A rank of pipeline stage `stage`: by the library's formulas and by the counters.
struct PlaceOnMesh {
  train::ModelStateBytes held;
  std::int64_t data_by_costs = 0, pipeline_by_formula = 0;
  SentOnMesh sent;
};

PlaceOnMesh look_at(const plan::Mesh& planned, Stage zero, int stage, const Settings& s) {
  const auto tensor_ranks = static_cast<int>(planned.tensor);
  dist::Communicator world =
      dist::connect_fake(stage * tensor_ranks, static_cast<int>(planned.ranks()));
  const dist::Mesh mesh(world, {{"data", dist::Mesh::kRest},
                                {"pipeline", static_cast<int>(planned.pipeline)},
                                {"tensor", tensor_ranks}});
  dist::Communicator &data = mesh.along("data"), &pipeline = mesh.along("pipeline"),
                     &tensor = mesh.along("tensor");
  const memory::Snapshot before = memory::snapshot();
  const auto part = std::make_shared<LlamaStage>(unpadded(s.tied), pipeline.rank(), pipeline.size(),
                                                 nn::TensorParallel(tensor));
  part->checkpoint_activations(s.recompute);
  const plan::ModelPart planned_part =
      plan::part_of(plan::model_of(unpadded(s.tied), ""), planned, stage);
  nn::SeededValues values(3);
  const auto number = static_cast<int>(zero);
  const std::string mode = zero == Stage::kDdp || planned.replicas == 1
                               ? fmt::format("engine{}", number)
                               : fmt::format("hsdp{}:shard_size={}", number, planned.shards);
  const auto strategy = make_strategy(
      mode, {.module = *part, .mesh = mesh, .optimizer = optim::adamw(), .values = &values});
  EXPECT_EQ(strategy->list().numel(), planned_part.model.parameters + planned_part.frozen);
  tools::PipelineTrainer trainer(*part, *strategy);
  // A data rank has as many samples as tensor ranks and stages work on.
  const std::int64_t samples = planned.tensor * planned.pipeline;
  const at::Tensor ids = (at::arange(samples * 16).view({samples, 16}) * 131).remainder(256);
  const std::vector<data::Batch> batches(
      static_cast<std::size_t>(s.micro_batches),
      {.inputs = ids, .targets = ids.flip(1), .loss_terms = samples * 16});
  const dist::Traffic on_data = data.traffic(), on_tensor = tensor.traffic(),
                      on_pipeline = pipeline.traffic();
  trainer.step(batches);
  EXPECT_EQ(text_of(states_since(before)), text_of(strategy->costs().at_rest));
  const dist::Traffic piped = pipeline.traffic().since(on_pipeline);
  return {.held = strategy->costs().at_rest,
          .data_by_costs = strategy->costs().sent,
          .pipeline_by_formula = pipeline_bytes(*part, tools::micro_batches_of(batches)),
          .sent = {training_bytes(data.traffic().since(on_data)),
                   tensor.traffic().since(on_tensor).bytes(Purpose::kActivation),
                   piped.bytes(Purpose::kActivation) + piped.bytes(Purpose::kParameter)}};
}

// What the place sends is what the library's formulas say.
PlaceOnMesh expect_by_formula(const plan::Mesh& mesh, Stage zero, int stage, const Settings& s) {
  SCOPED_TRACE(fmt::format("{} on {}, {}", plan::name(zero), plan::text(mesh), text(s)));
  const PlaceOnMesh place = look_at(mesh, zero, stage, s);
  // costs() are those of a step with one micro-batch: below ZeRO-3 of any step.
  if (s.micro_batches == 1 || zero != Stage::kZero3) {
    EXPECT_EQ(place.sent.data, place.data_by_costs);
  }
  EXPECT_EQ(place.sent.pipeline, mesh.pipeline == 1 ? 0 : place.pipeline_by_formula);
  return place;
}

void expect_planned(const plan::Mesh& mesh, Stage zero, const Settings& s) {
  SCOPED_TRACE(fmt::format("{} on {}, {}", plan::name(zero), plan::text(mesh), text(s)));
  const plan::StagePlan planned = plan::plan_stage(request_of(s), zero, mesh);
  SentOnMesh most;
  for (int stage = 0; stage < mesh.pipeline; ++stage) {
    const PlaceOnMesh place = expect_by_formula(mesh, zero, stage, s);
    if (stage == planned.fullest) {
      EXPECT_EQ(text_of(planned.states), text_of(place.held));
    }
    if (stage == 0 || place.sent.total() > most.total()) most = place.sent;
  }
  EXPECT_EQ(planned.sent.shards + planned.sent.replicas, static_cast<double>(most.data));
  EXPECT_EQ(planned.sent.tensor, static_cast<double>(most.tensor));
  EXPECT_EQ(planned.sent.pipeline, static_cast<double>(most.pipeline));
}

class PlannerOnMesh : public ::testing::TestWithParam<plan::Mesh> {};
INSTANTIATE_TEST_SUITE_P(Meshes, PlannerOnMesh,
                         ::testing::Values(plan::Mesh{1, 4, 1, 1}, plan::Mesh{2, 2, 1, 1},
                                           plan::Mesh{1, 1, 4, 1},
                                           plan::Mesh{1, 4, 2, 1},  // 8 ranks as 4 x 2
                                           plan::Mesh{2, 2, 2, 1},
                                           plan::Mesh{1, 4, 1, 4},  // four stages of four
                                           plan::Mesh{1, 2, 2, 2}, plan::Mesh{2, 2, 2, 2}),
                         [](const auto& info) { return "Mesh" + plan::text(info.param); });

TEST_P(PlannerOnMesh, HasTheBytesOfTheStrategiesAndOfTheStages) {
  on_ranks(1, [](dist::Communicator&) {
    const plan::Mesh mesh = GetParam();
    for (const Stage zero : plan::kStages) {
      // DDP shares nothing: all data ranks are copies.
      const plan::Mesh of_stage =
          zero == Stage::kDdp ? plan::Mesh{mesh.data(), 1, mesh.tensor, mesh.pipeline} : mesh;
      for (const bool tied : {true, false}) {
        if (tied && zero == Stage::kZero3 && mesh.pipeline > 1) continue;  // refused
        for (const std::int64_t m : {1, 3}) {
          expect_planned(of_stage, zero, {.tied = tied, .micro_batches = m});
        }
      }
    }
  });
}

class PlannerOnTensorAxis : public PlannerOnMesh {};
INSTANTIATE_TEST_SUITE_P(Meshes, PlannerOnTensorAxis,
                         ::testing::Values(plan::Mesh{1, 4, 2, 1}, plan::Mesh{1, 2, 2, 2},
                                           plan::Mesh{2, 2, 2, 4}),
                         [](const auto& info) { return "Mesh" + plan::text(info.param); });

TEST_P(PlannerOnTensorAxis, HasTheBytesOfCheckpoints) {
  on_ranks(1, [](dist::Communicator&) {
    for (const bool tied : {true, false}) {
      for (const std::int64_t m : {1, 3}) {
        expect_planned(GetParam(), Stage::kZero2,
                       {.tied = tied, .recompute = true, .micro_batches = m});
      }
    }
  });
}

// Shards are padded there, which is more than the planner knows of.
TEST(PlaceOf512, HoldsAndSendsWhatTheFormulasSay) {
  on_ranks(1, [](dist::Communicator&) {
    expect_by_formula({1, 64, 8, 1}, Stage::kZero3, 0, {.tied = false});
    expect_by_formula({8, 8, 8, 1}, Stage::kZero3, 0, {.tied = false});
    expect_by_formula({64, 8, 1, 1}, Stage::kZero3, 0, {.tied = false});
    for (int stage = 0; stage < 4; ++stage) {
      for (const bool tied : {true, false}) {
        expect_by_formula({1, 16, 8, 4}, Stage::kZero2, stage, {.tied = tied, .micro_batches = 6});
      }
    }
  });
}

// Bytes that a layer keeps from forward to backward on a rank of `tensor_ranks`: the rest of two
// models of different depth cancels out.
constexpr std::int64_t kTokensOfLayer = 256;

nn::LlamaConfig of_layers(std::int64_t layers) {
  return {.vocabulary = 64,
          .hidden = 128,
          .layers = layers,
          .heads = 8,
          .kv_heads = 8,
          .head_size = 16,
          .mlp = 384};
}

// A row of the table of 08_tensor_parallel/activations.md.
struct Kept {
  bool checkpoint = false, sequence = false, partition = false;
};

std::int64_t kept_by_a_layer(int tensor_ranks, const Kept& how) {
  const auto kept = [&](std::int64_t layers) {
    dist::Communicator axis = dist::connect_fake(0, tensor_ranks);
    nn::Llama model(of_layers(layers), {axis, how.sequence});
    nn::SeededValues values(3);
    nn::initialize_parameters(model, values);
    model.checkpoint_activations(how.checkpoint,
                                 {.partition_over = how.partition ? &axis : nullptr});
    const at::Tensor ids = at::arange(kTokensOfLayer).view({tensor_ranks, -1}).remainder(64);
    const std::int64_t before = memory::snapshot()[memory::Category::kActivations];
    const memory::Charge charge(memory::Category::kActivations);
    const at::Tensor loss = model.loss(ids, ids, ids.numel());
    return memory::snapshot()[memory::Category::kActivations] - before;
  };
  return kept(3) - kept(2);
}

std::int64_t planned_for_a_layer(int tensor_ranks, bool checkpoint) {
  const auto planned = [&](std::int64_t layers) {
    plan::Request request = request_of({.recompute = checkpoint});
    request.model = plan::model_of(of_layers(layers), "");
    request.sequence = kTokensOfLayer / tensor_ranks;
    return plan::plan_stage(request, Stage::kDdp, {1, 1, tensor_ranks, 1}).activations;
  };
  return planned(3) - planned(2);
}

// Beside what the planner counts, a norm keeps a number for each token and attention one for each
// token and head. What is cut along the sequence or partitioned is less by the page's formulas.
TEST(PlannedActivations, OfALayerAreThoseThatTheAllocatorCounts) {
  on_ranks(1, [](dist::Communicator&) {
    for (const int n : {1, 2, 4, 8}) {
      SCOPED_TRACE(fmt::format("{} tensor ranks", n));
      const std::int64_t a = kTokensOfLayer * 128 * 4, a_number = kTokensOfLayer * 4;
      const std::int64_t whole = planned_for_a_layer(n, false) + (2 + 8 / n) * a_number;
      EXPECT_EQ(kept_by_a_layer(n, {}), whole);
      EXPECT_EQ(kept_by_a_layer(n, {.sequence = true}),
                whole - (2 * a + 2 * a_number) * (n - 1) / n);
      EXPECT_EQ(planned_for_a_layer(n, true), a);
      EXPECT_EQ(kept_by_a_layer(n, {.checkpoint = true}), a);
      EXPECT_EQ(kept_by_a_layer(n, {.checkpoint = true, .partition = true}), a / n);
      EXPECT_EQ(kept_by_a_layer(n, {.checkpoint = true, .sequence = true}), a / n);
    }
  });
}

// Stage 0 of a model without a root holds its layers' activations for what is in flight.
TEST(PlannedPipeline, HasTheBubbleOfTheScheduleAndAsManyMicroBatchesInFlight) {
  plan::Request request;
  request.model = plan::model_of_size(1000, /*layers=*/4);
  request.batch = 3;
  for (const int stages : {1, 2, 4}) {
    for (const int m : {1, 3, 12}) {
      SCOPED_TRACE(fmt::format("{} stages, {} micro-batches", stages, m));
      request.mesh.micro_batches = m;
      const plan::StagePlan planned = plan::plan_stage(request, Stage::kDdp, {1, 1, 1, stages});
      const auto actions = all_actions(PipelineSchedule::kOneForwardOneBackward, stages, m);
      EXPECT_DOUBLE_EQ(planned.bubble(), bubble_fraction(in_time(actions)));
      ASSERT_EQ(planned.fullest, 0);
      const std::int64_t tokens = 3 * stages * request.sequence / m;  // of a micro-batch
      EXPECT_EQ(planned.activations, most_in_flight(actions.front()) * tokens * (4 / stages) *
                                         plan::layer_elements(request.model.shape) *
                                         request.policy.parameter);
    }
  }
}

}  // namespace
}  // namespace zero::testing
