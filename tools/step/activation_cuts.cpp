// Prints a table for lesson 08: activations cut by batch, by sequence, or by both. Columns: the
// published saving, the bytes that a layer keeps (allocator), and the bytes that a rank sends for
// that layer, tensor parallelism included.
//   ./run step 08 activation_cuts

#include <fmt/format.h>

#include <vector>

#include <tools/support/table.hpp>
#include <zero/base/error.hpp>
#include <zero/base/names.hpp>
#include <zero/base/program.hpp>
#include <zero/distributed/launch.hpp>
#include <zero/distributed/mesh.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/nn/llama.hpp>
#include <zero/nn/parameters.hpp>

namespace zero {
namespace {

constexpr int kData = 2, kTensor = 2;
constexpr std::int64_t kSamples = 8, kTokens = 32, kHidden = 64;

// One way to cut activations. `published`: the factor of memory saved, as published.
struct Cut {
  std::string name;
  int data, tensor;
  bool sequence;  // cuts along the sequence; false: partitions checkpoints (Pa, ZeRO-R)
  std::string published;
};

// Activation bytes on one rank: kept from forward to backward, and sent in both.
struct Bytes {
  std::int64_t kept = 0, sent = 0;
};

Bytes of_layers(std::int64_t layers, const Cut& cut, dist::Mesh& mesh) {
  dist::Communicator& axis = mesh.along("tensor");
  const nn::LlamaConfig config = {.vocabulary = 64,
                                  .hidden = kHidden,
                                  .layers = layers,
                                  .heads = 8,
                                  .kv_heads = 8,
                                  .head_size = kHidden / 8,
                                  .mlp = 2 * kHidden};
  nn::Llama model(config, {axis, cut.sequence});
  nn::SeededValues values(/*seed=*/1);
  nn::initialize_parameters(model, values);
  model.checkpoint_activations(true, {.partition_over = cut.sequence ? nullptr : &axis});
  const std::int64_t mine = kSamples / cut.data;
  const at::Tensor ids = (at::arange(mine * kTokens) + mesh.along("data").rank())
                             .remainder(config.vocabulary)
                             .view({mine, kTokens});
  const auto held = [] { return memory::snapshot()[memory::Category::kActivations]; };
  const dist::Traffic before = mesh.world().traffic();
  const std::int64_t held_before = held();
  const memory::Charge charge(memory::Category::kActivations);
  const at::Tensor loss = model.loss(ids, ids, mine * kTokens);
  Bytes bytes{.kept = held() - held_before};
  loss.backward();
  bytes.sent = mesh.world().traffic().since(before).bytes(dist::Purpose::kActivation);
  return bytes;
}

// Bytes of one layer: three layers minus two, so embedding and head cancel. Throws if ranks differ.
Bytes of_a_layer(const Cut& cut) {
  const auto exits =
      dist::launch_ranks({.world_size = cut.data * cut.tensor}, [&](dist::Communicator& world) {
        dist::Mesh mesh(world, {{"data", cut.data}, {"tensor", cut.tensor}});
        const Bytes two = of_layers(2, cut, mesh), three = of_layers(3, cut, mesh);
        return fmt::format("{} {}", three.kept - two.kept, three.sent - two.sent);
      });
  dist::check_all_well(exits);
  for (const dist::RankExit& rank : exits) {
    if (rank.result == exits[0].result) continue;
    throw Error(fmt::format("rank {} keeps and sends {} bytes, rank 0 {}", rank.rank, rank.result,
                            exits[0].result));
  }
  Bytes bytes;
  std::istringstream(exits[0].result) >> bytes.kept >> bytes.sent;
  return bytes;
}

void print_table() {
  const std::vector<Cut> cuts = {{"nothing", 1, 1, true, "1"},
                                 {"batch", kData, 1, true, "2"},
                                 {"sequence", 1, kTensor, true, "2"},
                                 {"both", kData, kTensor, true, "4"},
                                 {"batch, Pa", kData, kTensor, false, "-"}};
  const std::vector<tools::Column> columns = {
      {"cut", tools::Align::kLeft},
      {"data x tensor"},
      {"formula", tools::Align::kRight, "bytes", "a layer keeps"},
      {"measured", tools::Align::kRight, "bytes", "a layer keeps"},
      {"times less,", tools::Align::kRight, "as published"},
      {"times less, per", tools::Align::kRight, "sample of the batch"},
      {"times less, per", tools::Align::kRight, "sample of this rank"},
      {"sent", tools::Align::kRight, "bytes"}};
  constexpr std::int64_t kWhole = kSamples * kTokens * kHidden * 4;  // B S H, float32
  std::vector<tools::Cells> rows;
  for (const Cut& cut : cuts) {
    const Bytes bytes = of_a_layer(cut);
    const auto less = [&](std::int64_t than) {
      return tools::fixed(static_cast<double>(than) / static_cast<double>(bytes.kept), 2);
    };
    rows.push_back({cut.name, fmt::format("{} x {}", cut.data, cut.tensor),
                    base::with_thousands(kWhole / (cut.data * cut.tensor)),
                    base::with_thousands(bytes.kept), cut.published, less(kWhole),
                    less(kWhole / cut.data), base::with_thousands(bytes.sent)});
  }
  fmt::print("{} samples of {} tokens, hidden size {}, float32, checkpoints\n{}", kSamples, kTokens,
             kHidden, tools::table_text(columns, rows));
}

}  // namespace
}  // namespace zero

int main(int argc, char** argv) {
  return zero::run_program("activation_cuts", [&] {
    if (argc > 1) {
      throw zero::Error(fmt::format("'{}' is not expected: the table is the lesson's", argv[1]));
    }
    zero::memory::install();
    zero::print_table();
    return 0;
  });
}
