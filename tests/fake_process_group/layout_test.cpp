// How SmolLM2-360M lies on 1 to 512 ranks, every number of them, by formula: nothing is allocated.

#include <cstdint>
#include <numeric>
#include <vector>

#include <tests/support/deferred.hpp>
#include <tests/support/shard_layout.hpp>
#include <tools/models/presets.hpp>
#include <zero/nn/llama.hpp>
#include <zero/nn/parameters.hpp>

namespace zero::testing {
namespace {

constexpr int kMostRanks = 512;

std::int64_t round_up(std::int64_t value, std::int64_t step) {
  return (value + step - 1) / step * step;
}

// Elements of every tensor, unit by unit.
std::vector<std::vector<std::int64_t>> units_of_smollm2() {
  const auto model = make_deferred<nn::Llama>(tools::preset("smollm2-360m"));
  const nn::ParameterList list = nn::list_parameters(*model);
  std::vector<std::vector<std::int64_t>> units;
  for (const nn::UnitInfo& unit : list.units) {
    units.emplace_back();
    for (const std::size_t i : unit.parameters) units.back().push_back(list.parameters[i].numel());
  }
  return units;
}

std::int64_t parameters() { return tools::preset("smollm2-360m").parameters(); }

std::int64_t sum_of(const std::vector<std::int64_t>& numbers) {
  return std::accumulate(numbers.begin(), numbers.end(), std::int64_t{0});
}

TEST(LayoutOfSmolLm2, CutsEveryTensorWithoutGapAtEveryWorldSize) {
  const auto units = units_of_smollm2();
  ASSERT_EQ(units.size(), 33U);
  for (int n = 1; n <= kMostRanks; ++n) {
    for (const std::vector<std::int64_t>& sizes : units) expect_sound({sizes, n});
    ASSERT_FALSE(HasFailure()) << n << " ranks";
  }
}

// All tensors of the model are multiples of 64 elements, so that only the end of a unit is padded:
// each shard to the next multiple of 64.
TEST(LayoutOfSmolLm2, PaddingIsWhatRoundingAShardTo64ElementsTakesAndUnderHalfAPercent) {
  const auto units = units_of_smollm2();
  for (int n = 1; n <= kMostRanks; ++n) {
    std::int64_t shards = 0, padding = 0;
    for (const std::vector<std::int64_t>& sizes : units) {
      const std::int64_t elements = sum_of(sizes);
      const train::ShardLayout layout(sizes, n);
      const std::int64_t fair = (elements + n - 1) / n;
      EXPECT_EQ(layout.shard(), round_up(fair, 64)) << n << " ranks";
      EXPECT_EQ(layout.padding(), n * layout.shard() - elements) << n << " ranks";
      shards += layout.shard();
      padding += layout.padding();
    }
    EXPECT_EQ(shards * n, parameters() + padding);
    EXPECT_LT(static_cast<double>(padding), 0.005 * static_cast<double>(parameters()))
        << n << " ranks";
  }
}

}  // namespace
}  // namespace zero::testing
