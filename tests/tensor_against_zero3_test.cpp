// ZeRO-3 and tensor parallelism beside each other: what a rank of four sends in a step for the same
// model and the same tokens over all ranks, by the counters of real ranks and by the planner's
// formula. Prints both:
//   build/release/bin/parity_test --gtest_filter='TensorAgainstZero3.*'

#include <ATen/ops/arange.h>
#include <fmt/format.h>

#include <tests/support/deferred.hpp>
#include <tests/support/modes.hpp>
#include <tests/support/states.hpp>
#include <tools/plan/planner.hpp>
#include <tools/support/table.hpp>
#include <zero/base/thousands.hpp>
#include <zero/distributed/mesh.hpp>
#include <zero/nn/llama.hpp>
#include <zero/optim/adamw.hpp>
#include <zero/train/loop/trainer.hpp>

namespace zero::testing {
namespace {

constexpr int kFourRanks = 4;

// Units are multiples of 4 x 64 elements, so that no shard has padding.
nn::LlamaConfig config_of(std::int64_t layers) {
  return {.vocabulary = 256,
          .hidden = 256,
          .layers = layers,
          .heads = 4,
          .kv_heads = 4,
          .head_size = 64,
          .mlp = 768};
}

// Bytes that a rank sends in a step.
struct Compared {
  std::int64_t zero3 = 0, tensor = 0;
  Compared operator-(const Compared& other) const {
    return {zero3 - other.zero3, tensor - other.tensor};
  }
  bool operator==(const Compared&) const = default;
};

void PrintTo(const Compared& sent, std::ostream* out) {
  *out << sent.zero3 << " bytes under ZeRO-3, " << sent.tensor << " with tensor parallelism";
}

// Of the second step on `tensor_ranks` of the four, which have `samples` samples of `length`
// tokens.
std::int64_t bytes_sent(dist::Communicator& world, const std::string& mode, int tensor_ranks,
                        std::int64_t layers, std::int64_t samples, std::int64_t length) {
  const dist::Mesh mesh(world, {{"data", dist::Mesh::kRest}, {"tensor", tensor_ranks}});
  dist::Communicator& data = mesh.along("data");
  const auto model = make_deferred<nn::Llama>(config_of(layers), nn::TensorParallel(mesh.tensor()));
  nn::SeededValues values(3);
  const auto strategy = make_strategy(mode, {*model, mesh, optim::adamw(), &values});
  train::Trainer trainer(*strategy);
  const at::Tensor ids =
      (at::arange(samples * length).view({samples, length}) * 7 + data.rank()).remainder(256);
  const dist::Traffic before = world.traffic();
  trainer.step({{.inputs = ids, .targets = ids.flip(1), .loss_terms = ids.numel()}});
  const dist::Traffic sent = world.traffic().since(before);
  return training_bytes(sent) + sent.bytes(dist::Purpose::kActivation);
}

// `tokens` over all ranks: a quarter on each under ZeRO-3, all of them on each tensor rank.
Compared measured(dist::Communicator& world, std::int64_t layers, std::int64_t tokens) {
  const std::int64_t length = tokens / kFourRanks;
  return {bytes_sent(world, "engine3", 1, layers, 1, length),
          bytes_sent(world, "ddp", kFourRanks, layers, kFourRanks, length)};
}

Compared by_formula(std::int64_t layers, std::int64_t tokens) {
  plan::Request request;
  request.model = plan::model_of(config_of(layers), "");
  request.policy = plan::fp32();
  request.sequence = tokens / kFourRanks;
  const auto sent = [&](const plan::Mesh& mesh, plan::Stage stage) {
    return static_cast<std::int64_t>(plan::plan_stage(request, stage, mesh).sent.total());
  };
  return {sent({1, kFourRanks, 1, 1}, plan::Stage::kZero3),
          sent({1, 1, kFourRanks, 1}, plan::Stage::kDdp)};
}

TEST(TensorAgainstZero3, SendsWhatThePlannerSaysAndLessUpToTheTokensThatItNames) {
  const auto exits = ranks_ended({.world_size = kFourRanks}, [](dist::Communicator& world) {
    const plan::Model model = plan::model_of(config_of(2), "");
    const std::int64_t even =
        plan::tensor_parallel_crossover(model.largest_unit(), model.shape.hidden, plan::fp32());
    std::vector<tools::Column> columns = {{"tokens"}};
    for (const char* of : {"a layer", "two layers and the root"}) {
      for (const char* what : {"ZeRO-3", "formula", "tensor", "formula"}) {
        columns.push_back({what, tools::Align::kRight, "MiB", of});
      }
    }
    tools::Table table(columns);
    for (const std::int64_t tokens : {256, 1024, 1280, 2048}) {
      SCOPED_TRACE(fmt::format("{} tokens", tokens));
      const Compared two = measured(world, 2, tokens), planned = by_formula(2, tokens);
      const Compared layer = two - measured(world, 1, tokens);
      const Compared planned_layer = planned - by_formula(1, tokens);
      EXPECT_EQ(two, planned);
      EXPECT_EQ(layer, planned_layer);
      EXPECT_EQ(layer.zero3 < layer.tensor, tokens >= even);
      std::vector<std::string> row = {base::with_thousands(tokens)};
      for (const std::int64_t bytes :
           {layer.zero3, planned_layer.zero3, layer.tensor, planned_layer.tensor, two.zero3,
            planned.zero3, two.tensor, planned.tensor}) {
        row.push_back(tools::fixed(static_cast<double>(bytes) / (1 << 20), 3));
      }
      table.add_row(std::move(row));
    }
    if (world.rank() > 0) return;
    fmt::print("{}\nFor a layer ZeRO-3 sends less from {} tokens on, by formula.\n",
               table.to_text(), base::with_thousands(even));
    std::fflush(stdout);
  });
  const std::string failures = dist::describe_failures(exits);
  EXPECT_TRUE(failures.empty()) << failures;
  fmt::print("{}", exits[0].output);
}

}  // namespace
}  // namespace zero::testing
