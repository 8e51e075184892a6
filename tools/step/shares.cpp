// A table of lesson 04: the bytes of each rank at 2, 4, 8 and 16 ranks, if whole parameters are
// assigned to ranks and if every tensor is split, and how many elements of padding that takes
// with one buffer for each unit and with one for each parameter. Sizes only: nothing is allocated,
// no rank is started. --json writes them, and ./run draws them beside that file.
//   ./run step 04 shares --help

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <vector>

#include <tools/models/presets.hpp>
#include <tools/support/by_count.hpp>
#include <tools/support/json.hpp>
#include <tools/support/table.hpp>
#include <zero/base/names.hpp>
#include <zero/base/program.hpp>
#include <zero/nn/defer.hpp>
#include <zero/nn/llama.hpp>
#include <zero/nn/parameters.hpp>
#include <zero/train/flat/shard_layout.hpp>
#include <zero/train/owners.hpp>

namespace zero {
namespace {

using Shares = std::vector<std::int64_t>;  // bytes of each rank

Shares of_owners(const nn::ParameterList& list, int ranks, bool by_size) {
  std::vector<std::int64_t> bytes;
  for (const nn::Parameter& p : list.parameters) bytes.push_back(p.bytes());
  const auto n = static_cast<std::size_t>(ranks);
  const std::vector<int> owners =
      by_size ? train::assign_owners(bytes, ranks) : tools::owners_by_count(bytes.size(), n);
  Shares shares(n, 0);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    shares[static_cast<std::size_t>(owners[i])] += bytes[i];
  }
  return shares;
}

struct Split {
  Shares shares;
  std::int64_t padding = 0;  // elements, of all ranks together
};

// One buffer a unit, as tensor_zero3 has it if all parameters are trainable and of one dtype, or
// one a parameter. Padding is held as well, so it counts.
Split of_shards(const nn::ParameterList& list, int ranks, bool per_parameter) {
  const auto element = static_cast<std::int64_t>(list.parameters.front().tensor.element_size());
  std::int64_t bytes = 0, padding = 0;
  const auto add = [&](std::vector<std::int64_t> sizes) {
    const train::ShardLayout layout(std::move(sizes), ranks);
    bytes += layout.shard() * element;
    padding += layout.padding();
  };
  for (const nn::UnitInfo& unit : list.units) {
    std::vector<std::int64_t> sizes;
    for (const std::size_t i : unit.parameters) sizes.push_back(list.parameters[i].numel());
    if (per_parameter) {
      for (const std::int64_t size : sizes) add({size});
    } else if (!sizes.empty()) {
      add(std::move(sizes));
    }
  }
  return {Shares(static_cast<std::size_t>(ranks), bytes), padding};
}

double largest_over_mean(const Shares& shares) {
  const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
  const auto largest = static_cast<double>(*std::max_element(shares.begin(), shares.end()));
  return largest * static_cast<double>(shares.size()) / sum;
}

// Prints the table, and returns it as JSON.
tools::Json compare(const std::string& model, const nn::ParameterList& list) {
  const std::vector<tools::Column> columns = {
      {"ranks"},
      {"fair share", tools::Align::kRight, "MiB"},
      {"by count", tools::Align::kRight, "", "largest over mean"},
      {"by size", tools::Align::kRight, "", "largest over mean"},
      {"split", tools::Align::kRight, "", "largest over mean"},
      {"flat", tools::Align::kRight, "elements", "padding"},
      {"per parameter", tools::Align::kRight, "elements", "padding"}};
  std::vector<tools::Cells> rows;
  tools::Json document = {{"model", model}, {"parameter_bytes", list.bytes()}};
  for (const int ranks : {2, 4, 8, 16}) {
    const Shares by_count = of_owners(list, ranks, /*by_size=*/false);
    const Shares by_size = of_owners(list, ranks, /*by_size=*/true);
    const Split split = of_shards(list, ranks, /*per_parameter=*/false);
    const Split per_parameter = of_shards(list, ranks, /*per_parameter=*/true);
    rows.push_back(
        {std::to_string(ranks),
         tools::fixed(static_cast<double>(list.bytes()) / ranks / (1 << 20), 2),
         tools::fixed(largest_over_mean(by_count), 4), tools::fixed(largest_over_mean(by_size), 4),
         tools::fixed(largest_over_mean(split.shares), 4), base::with_thousands(split.padding),
         base::with_thousands(per_parameter.padding)});
    document["rows"].push_back(
        {{"ranks", ranks}, {"by_count", by_count}, {"by_size", by_size}, {"split", split.shares}});
  }
  fmt::print("{}: {} parameters in {} tensors, fp32\n{}", model, base::with_thousands(list.numel()),
             list.size(), tools::table_text(columns, rows));
  return document;
}

}  // namespace

int run(int argc, char** argv) {
  std::string model = "smollm2-360m", json;
  CLI::App app{"Bytes of parameters that each rank owns, by whole parameters and split."};
  app.add_option("--model", model, "one of the presets")->capture_default_str();
  app.add_option("--json", json, "write the shares here; ./run draws them beside it");
  CLI11_PARSE(app, argc, argv);
  return run_program("shares", [&] {
    const auto llama = nn::defer([&] { return std::make_shared<nn::Llama>(tools::preset(model)); });
    const nn::ParameterList list = nn::list_parameters(*llama);
    const tools::Json document = compare(model, list);
    if (!json.empty()) tools::write_json(json, document);
    return 0;
  });
}

}  // namespace zero

int main(int argc, char** argv) { return zero::run(argc, argv); }
