// Prints a table for lesson 08: activations cut by batch, by sequence, or by both. Columns: the
// published saving, the bytes that a layer keeps (allocator), and the bytes that a rank sends for
// that layer, tensor parallelism included.
//   ./run step 08 activation_cuts --help

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <vector>

#include <tools/support/arguments.hpp>
#include <tools/support/table.hpp>
#include <zero/base/error.hpp>
#include <zero/base/program.hpp>
#include <zero/base/thousands.hpp>
#include <zero/distributed/launch.hpp>
#include <zero/distributed/mesh.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/nn/llama.hpp>
#include <zero/nn/parameters.hpp>

namespace zero {
namespace {

struct Sizes {
  int data = 2, tensor = 2;
  std::int64_t samples = 8, tokens = 32, hidden = 64;
};

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

Bytes of_layers(std::int64_t layers, const Sizes& sizes, const Cut& cut, dist::Mesh& mesh) {
  dist::Communicator& axis = mesh.along("tensor");
  const nn::LlamaConfig config = {.vocabulary = 64,
                                  .hidden = sizes.hidden,
                                  .layers = layers,
                                  .heads = 8,
                                  .kv_heads = 8,
                                  .head_size = sizes.hidden / 8,
                                  .mlp = 2 * sizes.hidden};
  nn::Llama model(config, {axis, cut.sequence});
  nn::SeededValues values(/*seed=*/1);
  nn::initialize_parameters(model, values);
  model.checkpoint_activations(true, {.partition_over = cut.sequence ? nullptr : &axis});
  const std::int64_t mine = sizes.samples / cut.data;
  const at::Tensor ids = (at::arange(mine * sizes.tokens) + mesh.along("data").rank())
                             .remainder(config.vocabulary)
                             .view({mine, sizes.tokens});
  const auto held = [] { return memory::snapshot()[memory::Category::kActivations]; };
  const dist::Traffic before = mesh.world().traffic();
  const std::int64_t held_before = held();
  const memory::Charge charge(memory::Category::kActivations);
  const at::Tensor loss = model.loss(ids, ids, mine * sizes.tokens);
  Bytes bytes{.kept = held() - held_before};
  loss.backward();
  bytes.sent = mesh.world().traffic().since(before).bytes(dist::Purpose::kActivation);
  return bytes;
}

// Bytes of one layer: three layers minus two, so embedding and head cancel. Throws if ranks differ.
Bytes of_a_layer(const Sizes& sizes, const Cut& cut) {
  const auto exits =
      dist::launch_ranks({.world_size = cut.data * cut.tensor}, [&](dist::Communicator& world) {
        dist::Mesh mesh(world, {{"data", cut.data}, {"tensor", cut.tensor}});
        const Bytes two = of_layers(2, sizes, cut, mesh), three = of_layers(3, sizes, cut, mesh);
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

void print_table(const Sizes& sizes) {
  const int d = sizes.data, t = sizes.tensor;
  const auto times = [](int factor) { return std::to_string(factor); };
  const std::vector<Cut> cuts = {{"nothing", 1, 1, true, "1"},
                                 {"batch", d, 1, true, times(d)},
                                 {"sequence", 1, t, true, times(t)},
                                 {"both", d, t, true, times(d * t)},
                                 {"batch, Pa", d, t, false, "-"}};
  tools::Table table({{"cut", tools::Align::kLeft},
                      {"data x tensor"},
                      {"formula", tools::Align::kRight, "bytes", "a layer keeps"},
                      {"measured", tools::Align::kRight, "bytes", "a layer keeps"},
                      {"published", tools::Align::kRight, "times less"},
                      {"of the batch", tools::Align::kRight, "times less"},
                      {"of own samples", tools::Align::kRight, "times less"},
                      {"sent", tools::Align::kRight, "bytes"}});
  const std::int64_t whole = sizes.samples * sizes.tokens * sizes.hidden * 4;  // B S H, float32
  for (const Cut& cut : cuts) {
    const Bytes bytes = of_a_layer(sizes, cut);
    const auto less = [&](std::int64_t than) {
      return tools::fixed(static_cast<double>(than) / static_cast<double>(bytes.kept), 2);
    };
    table.add_row({cut.name, fmt::format("{} x {}", cut.data, cut.tensor),
                   base::with_thousands(whole / (cut.data * cut.tensor)),
                   base::with_thousands(bytes.kept), cut.published, less(whole),
                   less(whole / cut.data), base::with_thousands(bytes.sent)});
  }
  fmt::print("{} samples of {} tokens, hidden size {}, float32, checkpoints\n{}", sizes.samples,
             sizes.tokens, sizes.hidden, table.to_text());
}

}  // namespace

int run(int argc, char** argv) {
  Sizes sizes;
  CLI::App app{"What a layer keeps of activations that are cut by batch, by sequence, or by both."};
  const auto option = [&](const char* name, auto& value, const char* what) {
    app.add_option(name, value, what)->capture_default_str()->check(CLI::PositiveNumber);
  };
  option("--data", sizes.data, "data-parallel ranks");
  option("--tensor", sizes.tensor, "tensor-parallel ranks: 1, 2, 4 or 8");
  option("--samples", sizes.samples, "samples of all ranks, a multiple of --data");
  option("--tokens", sizes.tokens, "tokens of a sample, a multiple of --tensor");
  option("--hidden", sizes.hidden, "hidden size, a multiple of 16");
  CLI11_PARSE(app, argc, argv);
  return run_program("activation_cuts", [&] {
    tools::check_arguments(argc, argv);
    if (sizes.samples % sizes.data != 0) {
      throw Error(fmt::format("{} samples cannot be shared evenly by {} data-parallel ranks",
                              sizes.samples, sizes.data));
    }
    memory::install();
    print_table(sizes);
    return 0;
  });
}

}  // namespace zero

int main(int argc, char** argv) { return zero::run(argc, argv); }
