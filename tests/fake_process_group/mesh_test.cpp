// A rank of a mesh in a fake process group: beside the same rank of a real mesh, and by formula
// where there are too many ranks to start. On a tensor axis values mean nothing, bytes are exact.
#include <ATen/ops/arange.h>
#include <fmt/format.h>

#include <algorithm>

#include <09_pipeline/pipeline_trainer.hpp>
#include <tests/support/split_run.hpp>
#include <tests/support/states.hpp>
#include <tools/plan/planner.hpp>
#include <zero/distributed/fake/fake_backend.hpp>
#include <zero/distributed/mesh.hpp>
#include <zero/memory/accounting.hpp>

namespace zero::testing {
namespace {

using dist::Mesh;
using dist::Purpose;

// One rank of a data axis, with its part of a model.
template <class Model>
struct MeshRank {
  MeshRank(const dist::Mesh& mesh, std::shared_ptr<Model> part, const std::string& mode)
      : model(std::move(part)) {
    strategy = make_strategy(
        mode, {.model = *model, .mesh = mesh, .optimizer = optim::adamw(), .values = &values});
  }

  nn::SeededValues values{3};
  std::shared_ptr<Model> model;
  std::unique_ptr<train::Strategy> strategy;
};

// ---- beside a real rank

struct SeenOnMesh {
  train::ModelStateBytes held;
  std::int64_t activations = 0;  // their peak in a step, in bytes
  std::int64_t predicted = 0;    // what a step sends on the data axis, by the strategy's formula
  dist::Traffic data, tensor;    // of a step
};

// Axes "data" and "tensor".
Mesh two_axes(dist::Communicator& world, int tensor_ranks) {
  return {world, {{"data", Mesh::kRest}, {"tensor", tensor_ranks}}};
}

SeenOnMesh look_at(const Mesh& mesh, const std::string& mode, bool sequence) {
  dist::Communicator &data = mesh.along("data"), &tensor = mesh.along("tensor");
  const memory::Snapshot before = memory::snapshot();
  const MeshRank<nn::Llama> rank(
      mesh, make_deferred<nn::Llama>(llama_to_split(), nn::TensorParallel(tensor, sequence)), mode);
  train::Trainer trainer(*rank.strategy);
  trainer.step({split_batch(data.rank(), 0)});
  const dist::Traffic on_data = data.traffic(), on_tensor = tensor.traffic();
  memory::reset_peaks();
  trainer.step({split_batch(data.rank(), 1)});
  return {.held = states_since(before),
          .activations = memory::snapshot().peak_of(memory::Category::kActivations) -
                         before[memory::Category::kActivations],
          .predicted = rank.strategy->costs().sent,
          .data = data.traffic().since(on_data),
          .tensor = tensor.traffic().since(on_tensor)};
}

void expect_same(const dist::Traffic& fake, const dist::Traffic& real, const char* axis) {
  for (std::size_t p = 0; p < dist::kPurposes; ++p) {
    const auto purpose = static_cast<Purpose>(p);
    EXPECT_EQ(fake.bytes(purpose), real.bytes(purpose)) << axis << " " << name(purpose);
    EXPECT_EQ(fake.calls(purpose), real.calls(purpose)) << axis << " " << name(purpose);
  }
}

class FakeMesh : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(DataRanks, FakeMesh, ::testing::Values(1, 2), name_of_ranks);

TEST_P(FakeMesh, ARankHoldsAndSendsWhatItDoesInARealOne) {
  on_ranks(2 * GetParam(), [](dist::Communicator& real) {
    const Mesh real_mesh = two_axes(real, 2);
    for (const bool sequence : {false, true}) {
      for (const std::string& mode : all_modes()) {
        SCOPED_TRACE(fmt::format("{}, sequence {}", mode, sequence));
        const SeenOnMesh of_real = look_at(real_mesh, mode, sequence);
        dist::Communicator fake = dist::connect_fake(real.rank(), real.size());
        const SeenOnMesh of_fake = look_at(two_axes(fake, 2), mode, sequence);
        EXPECT_EQ(text_of(of_fake.held), text_of(of_real.held));
        EXPECT_EQ(of_fake.activations, of_real.activations);
        EXPECT_EQ(of_fake.predicted, of_real.predicted);
        EXPECT_EQ(training_bytes(of_fake.data), of_fake.predicted);
        expect_same(of_fake.data, of_real.data, "data");
        expect_same(of_fake.tensor, of_real.tensor, "tensor");
      }
    }
  });
}

// ---- by formula

struct MeshPlace {
  int rank, ranks;  // of the world
  int tensor;       // ranks of the tensor axis; the others are the data axis
  int shards;       // data ranks that share the model states
  const char* mode;

  int data() const { return ranks / tensor; }
};

void PrintTo(const MeshPlace& place, std::ostream* out) {
  *out << fmt::format("{} of {} = {} x {} in groups of {}, {}", place.rank, place.ranks,
                      place.data(), place.tensor, place.shards, place.mode);
}

nn::LlamaConfig medium() {
  return {.vocabulary = 2048,
          .hidden = 256,
          .layers = 2,
          .heads = 8,
          .kv_heads = 8,
          .head_size = 32,
          .mlp = 1024};
}

data::Batch batch_of_16() {
  const at::Tensor ids = (at::arange(16).view({1, 16}) * 131).remainder(2048);
  return {.inputs = ids, .targets = ids.flip(1), .loss_terms = 16};
}

// What a rank has of one unit, in elements.
struct Shard {
  std::int64_t padded;  // a multiple of 64, the same on all ranks
  std::int64_t own;     // of these, those that are no padding
};

// Of the root and of a layer, as `place` cuts them: every tensor over the tensor axis but the
// norms', then all of them together over the ranks that share model states.
std::vector<Shard> shards_of(const MeshPlace& place) {
  const nn::LlamaConfig c = medium();
  const std::int64_t layer = 4 * c.hidden * c.hidden + 3 * c.hidden * c.mlp;
  const std::int64_t here = place.rank / place.tensor % place.shards;  // in the shard group
  std::vector<Shard> shards;
  for (const std::int64_t elements :
       {c.vocabulary * c.hidden / place.tensor + c.hidden, layer / place.tensor + 2 * c.hidden}) {
    const std::int64_t fair = (elements + place.shards - 1) / place.shards;
    const std::int64_t padded = (fair + 63) / 64 * 64;
    shards.push_back({padded, std::clamp(elements - here * padded, std::int64_t{0}, padded)});
  }
  return shards;
}

// 4 + 4 bytes of padded shards and 8 of moments. No gradients are kept for padding alone.
train::ModelStateBytes states_of(const MeshPlace& place) {
  const std::vector<Shard> shards = shards_of(place);
  train::ModelStateBytes states;
  for (std::size_t u = 0; u < shards.size(); ++u) {
    const std::int64_t count = u == 0 ? 1 : medium().layers;
    states.parameters += count * 4 * shards[u].padded;
    states.gradients += count * (shards[u].own > 0 ? 4 * shards[u].padded : 0);
    states.optimizer += count * 8 * shards[u].own;
  }
  return states;
}

class FakeMeshAt : public ::testing::TestWithParam<MeshPlace> {};
INSTANTIATE_TEST_SUITE_P(Places, FakeMeshAt,
                         ::testing::Values(MeshPlace{0, 512, 8, 64, "tensor_zero3"},
                                           MeshPlace{300, 512, 8, 64, "tensor_zero3"},
                                           MeshPlace{511, 512, 8, 64, "tensor_zero3"},
                                           MeshPlace{77, 512, 8, 64, "engine3"},
                                           MeshPlace{37, 64, 1, 8, "hsdp3:shard_size=8"},
                                           MeshPlace{300, 512, 1, 8, "hsdp3:shard_size=8"}));

TEST_P(FakeMeshAt, HoldsAndSendsWhatTheFormulasSay) {
  on_ranks(1, [](dist::Communicator&) {
    const MeshPlace place = GetParam();
    const nn::LlamaConfig c = medium();
    dist::Communicator world = dist::connect_fake(place.rank, place.ranks);
    const Mesh mesh = two_axes(world, place.tensor);
    dist::Communicator &data = mesh.along("data"), &tensor = mesh.along("tensor");
    const memory::Snapshot before = memory::snapshot();
    const MeshRank<nn::Llama> rank(mesh, make_deferred<nn::Llama>(c, nn::TensorParallel(tensor)),
                                   place.mode);
    const std::int64_t norms = (2 * c.layers + 1) * c.hidden;
    EXPECT_EQ(rank.strategy->list().numel(), (c.parameters() - norms) / place.tensor + norms);
    train::Trainer trainer(*rank.strategy);
    trainer.step({batch_of_16()});
    const dist::Traffic on_data = data.traffic(), on_tensor = tensor.traffic();
    trainer.step({batch_of_16()});
    EXPECT_EQ(text_of(states_since(before)), text_of(states_of(place)));
    EXPECT_EQ(text_of(rank.strategy->costs().at_rest), text_of(states_of(place)));

    const std::vector<Shard> shards = shards_of(place);
    const std::int64_t once = 4 * (shards[0].padded + c.layers * shards[1].padded);
    const std::int64_t others = place.shards - 1, groups = place.data() / place.shards;
    const dist::Traffic sent = data.traffic().since(on_data);
    // The root is gathered once.
    EXPECT_EQ(sent.bytes(Purpose::kParameter), others * (2 * once - 4 * shards[0].padded));
    EXPECT_EQ(sent.bytes(Purpose::kGradient), others * once + 2 * once / groups * (groups - 1));
    // The planner has no padding, which is 6 % of the root here and 3 % of a layer.
    plan::Request request;
    request.model = plan::model_of(c, "medium");
    request.policy = plan::fp32();
    request.sequence = 16 / place.tensor;  // a data rank has as many samples as tensor ranks
    const plan::Mesh planned_mesh{groups, place.shards, place.tensor, 1};
    const plan::StagePlan planned = plan::plan_stage(request, plan::Stage::kZero3, planned_mesh);
    EXPECT_EQ(plan::part_of(request.model, planned_mesh, 0).model.parameters,
              rank.strategy->list().numel());
    EXPECT_NEAR(
        (planned.sent.shards + planned.sent.replicas) / static_cast<double>(training_bytes(sent)),
        1, 0.04);
    const dist::Traffic activations = tensor.traffic().since(on_tensor);
    const std::int64_t n = place.tensor, tokens = 16;
    EXPECT_EQ(planned.sent.tensor, static_cast<double>(activations.bytes(Purpose::kActivation)));
    EXPECT_EQ(activations.bytes(Purpose::kActivation),
              (4 * c.layers + 2) * 2 * tokens * c.hidden * 4 / n * (n - 1) + 8 * tokens * (n - 1));
    EXPECT_EQ(training_bytes(activations), 0);
  });
}

// A rank of `stage` of four, among `data_ranks` x `tensor_ranks` of each stage.
void expect_stage_by_formula(int stage, int data_ranks, int tensor_ranks, bool tied) {
  SCOPED_TRACE(
      fmt::format("stage {}, {} x {}{}", stage, data_ranks, tensor_ranks, tied ? ", tied" : ""));
  nn::LlamaConfig c = medium();
  c.layers = 5;
  c.tied = tied;
  const int of_stage = data_ranks * tensor_ranks;
  dist::Communicator world = dist::connect_fake(stage * of_stage + of_stage / 2, 4 * of_stage);
  const Mesh mesh(world, {{"pipeline", 4}, {"data", Mesh::kRest}, {"tensor", tensor_ranks}});
  dist::Communicator &data = mesh.along("data"), &pipeline = mesh.along("pipeline");
  const nn::TensorParallel tensor(mesh.tensor());
  const memory::Snapshot before = memory::snapshot();
  const MeshRank<LlamaStage> rank(mesh, std::make_shared<LlamaStage>(c, stage, 4, tensor), "zero2");
  PipelineTrainer trainer(*rank.model, *rank.strategy);
  const plan::ModelPart part =
      plan::part_of(plan::model_of(c, "medium"), {1, data_ranks, tensor_ranks, 4}, stage);
  EXPECT_EQ(part.model.parameters + part.frozen, rank.strategy->list().numel());
  const dist::Traffic on_data = data.traffic(), on_pipeline = pipeline.traffic();
  trainer.step(std::vector<data::Batch>(6, batch_of_16()));
  EXPECT_EQ(text_of(states_since(before)), text_of(rank.strategy->costs().at_rest));
  EXPECT_EQ(training_bytes(data.traffic().since(on_data)), rank.strategy->costs().sent);
  const dist::Traffic sent = pipeline.traffic().since(on_pipeline);
  const std::int64_t all = 6 * 16 * c.hidden * 4;  // m A
  const bool first = stage == 0, last = stage == 3;
  EXPECT_EQ(sent.bytes(Purpose::kActivation), (last ? 0 : all) + (first && !tied ? 0 : all));
  EXPECT_EQ(sent.bytes(Purpose::kParameter),
            last && tied ? c.vocabulary * c.hidden * 4 / tensor_ranks : 0);
}

TEST(FakePipeline, AStageHoldsAndSendsWhatTheFormulasSay) {
  on_ranks(1, [](dist::Communicator&) {
    for (int stage = 0; stage < 4; ++stage) {
      for (const bool tied : {true, false}) {
        expect_stage_by_formula(stage, /*data_ranks=*/4, /*tensor_ranks=*/1, tied);
        expect_stage_by_formula(stage, /*data_ranks=*/16, /*tensor_ranks=*/8, tied);  // 512 ranks
      }
    }
  });
}

}  // namespace
}  // namespace zero::testing
