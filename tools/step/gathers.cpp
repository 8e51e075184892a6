// A table of lesson 04: a forward and a backward under tensor_zero3:per_parameter,
// tensor_zero3 and :whole on ranks of this machine, and for each the number of gathers, the peak of
// parameters that were whole and the peak of gradients.
//   ./run step 04 gathers --help

#include <ATen/ops/arange.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include <04_tensor_sharding/tensor_zero3.hpp>
#include <tools/models/presets.hpp>
#include <tools/support/table.hpp>
#include <zero/base/program.hpp>
#include <zero/distributed/launch.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/nn/defer.hpp>
#include <zero/nn/llama.hpp>
#include <zero/optim/adamw.hpp>

namespace zero {
namespace {

using dist::Operation;
using dist::Purpose;
using memory::Category;

double mib(std::int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

// Counts and bytes do not depend on what the tokens are.
at::Tensor loss_of(nn::Llama& model, int rank) {
  constexpr std::int64_t kTokens = 32;
  const std::int64_t words = model.config().vocabulary;
  const at::Tensor ids = (at::arange(kTokens) * 7 + rank).remainder(words).view({1, kTokens});
  return model.loss(ids, (ids + 7).remainder(words), kTokens);
}

// A row of the table: what this rank gathered in a forward and a backward under `variant`.
tools::Cells measure(dist::Communicator& communicator, const std::string& preset,
                     const std::string& variant) {
  const nn::LlamaConfig config = tools::preset(preset);
  const auto model = nn::defer([&] { return std::make_shared<nn::Llama>(config); });
  nn::SeededValues values(/*seed=*/7);
  TensorZero3 strategy({*model, communicator, optim::adamw(), &values, variant});
  // The shards, which are there all the time; what comes on top is what was gathered.
  const std::int64_t rest = memory::snapshot()[Category::kParameters];
  memory::reset_peaks();
  const dist::Traffic before = communicator.traffic();
  strategy.backward(strategy.forward([&] { return loss_of(*model, communicator.rank()); }));
  strategy.finish_backward();
  const dist::Traffic sent = communicator.traffic().since(before);
  const auto& gathers = sent.at(Operation::kAllGather, Purpose::kParameter);
  const memory::Snapshot now = memory::snapshot();
  const std::int64_t peak = now.peak_of(Category::kParameters) - rest;
  const auto moved =
      static_cast<double>(sent.bytes(Purpose::kParameter) + sent.bytes(Purpose::kGradient));
  const auto whole = static_cast<double>(strategy.list().bytes());
  return {variant == "flat" ? "tensor_zero3" : "tensor_zero3:" + variant,
          std::to_string(gathers.calls),
          std::to_string(sent.at(Operation::kReduceScatter, Purpose::kGradient).calls),
          tools::fixed(moved / whole, 4),
          tools::fixed(mib(peak), 2),
          tools::fixed(100 * static_cast<double>(peak) / whole, 1),
          tools::fixed(mib(now.peak_of(Category::kGradients)), 2)};
}

std::string run_rank(dist::Communicator& communicator, const std::string& model) {
  const std::vector<tools::Column> columns = {
      {"mode", tools::Align::kLeft},
      {"gathers"},
      {"reduce-scatters"},
      {"sent", tools::Align::kRight, "V"},
      {"peak", tools::Align::kRight, "MiB", "parameters beside the shard"},
      {"", tools::Align::kRight, "% of V", "parameters beside the shard"},
      {"gradients", tools::Align::kRight, "MiB", "peak"}};
  std::vector<tools::Cells> rows;
  for (const char* variant : {"per_parameter", "flat", "whole"}) {
    rows.push_back(measure(communicator, model, variant));
  }
  if (communicator.rank() == 0) {
    fmt::print("{}, {} ranks, one step with one micro-batch:\n{}", model, communicator.size(),
               tools::table_text(columns, rows));
  }
  return "";
}

}  // namespace

int run(int argc, char** argv) {
  std::string model = "tiny";
  CLI::App app{"How much is whole at a time under stage 3, and how many collectives that takes."};
  app.add_option("--model", model, "one of the presets")
      ->capture_default_str()
      ->check(CLI::IsMember(tools::preset_names()));
  CLI11_PARSE(app, argc, argv);
  return run_program("gathers", [&] {
    memory::install();
    dist::check_all_well(dist::launch_ranks(
        {.world_size = 2},
        [&](dist::Communicator& communicator) { return run_rank(communicator, model); }));
    return 0;
  });
}

}  // namespace zero

int main(int argc, char** argv) { return zero::run(argc, argv); }
