// Who owns what, and in which order collectives go.

#include <gtest/gtest.h>

#include <numeric>

#include <zero/base/error.hpp>
#include <zero/nn/llama.hpp>
#include <zero/nn/parameters.hpp>
#include <zero/train/ownership.hpp>
#include <zero/train/registry.hpp>

namespace zero::train {
namespace {

constexpr Ownership kAll[] = {Ownership::kBySize, Ownership::kByCount, Ownership::kByOffset};

std::vector<std::int64_t> loads(const std::vector<std::int64_t>& bytes, int n, Ownership how) {
  std::vector<std::int64_t> load(static_cast<std::size_t>(n), 0);
  const std::vector<int> owners = assign_owners(bytes, n, how);
  for (std::size_t i = 0; i < bytes.size(); ++i)
    load.at(static_cast<std::size_t>(owners[i])) += bytes[i];
  return load;
}

double max_over_mean(const std::vector<std::int64_t>& load) {
  const double sum = std::accumulate(load.begin(), load.end(), 0.0);
  return static_cast<double>(*std::max_element(load.begin(), load.end())) * load.size() / sum;
}

TEST(Ownership, EveryParameterHasAnOwnerInTheWorld) {
  for (const int n : {1, 2, 3, 4, 7, 8}) {
    for (const std::size_t count : {0U, 1U, 6U, 7U, 8U, 97U}) {
      std::vector<std::int64_t> bytes(count);
      for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::int64_t>((i * 37) % 101);
      for (const Ownership how : kAll) {
        const std::vector<int> owners = assign_owners(bytes, n, how);
        ASSERT_EQ(owners.size(), count);
        for (const int owner : owners) EXPECT_TRUE(owner >= 0 && owner < n);
      }
    }
  }
}

TEST(Ownership, ByCountGivesTheRemainderToTheFirstRanks) {
  EXPECT_EQ(assign_owners({1, 1, 1, 1, 1, 1, 1}, 3, Ownership::kByCount),
            (std::vector<int>{0, 0, 0, 1, 1, 2, 2}));
}

TEST(Ownership, BySizeBalancesPerfectlyWhereItCan) {
  EXPECT_DOUBLE_EQ(max_over_mean(loads({9, 7, 5, 3, 9, 7, 5, 3}, 2, Ownership::kBySize)), 1.0);
}

// Published sizes of the model that the ladder trains; the larger figures are why chapter 04
// exists.
TEST(Ownership, OfSmolLm2IsAsUnevenAsItsEmbedding) {
  const nn::DeferredStorage deferred;
  nn::Llama model(nn::preset("smollm2-360m"));
  std::vector<std::int64_t> bytes;
  for (const nn::Parameter& p : nn::list_parameters(model).parameters) bytes.push_back(p.bytes());
  ASSERT_EQ(bytes.size(), 290U);
  const double by_count[] = {1.130, 1.391, 1.913, 2.956};
  const double by_size[] = {1.0002, 1.0019, 1.043, 2.087};
  for (int i = 0; i < 4; ++i) {
    const int n = 2 << i;
    EXPECT_NEAR(max_over_mean(loads(bytes, n, Ownership::kByCount)), by_count[i], 0.0006) << n;
    EXPECT_NEAR(max_over_mean(loads(bytes, n, Ownership::kBySize)), by_size[i], 0.0006) << n;
  }
}

TEST(Ownership, UnknownNamesAreRefused) {
  EXPECT_EQ(ownership_from("count"), Ownership::kByCount);
  EXPECT_THROW(ownership_from("cuont"), Error);
}

TEST(Registry, NamesTheNearestModeForAnUnknownOne) {
  Registry registry;
  registry.add({"zero1", "01_zero1", {"owner", "naive"}, nullptr});
  registry.check("zero1");
  registry.check("zero1:naive");
  EXPECT_EQ(registry.modes(), (std::vector<std::string>{"zero1", "zero1:naive"}));
  for (const char* wrong : {"zer1", "zero1:nave", "zero1:"}) {
    try {
      registry.check(wrong);
      ADD_FAILURE() << wrong;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("zero1"), std::string::npos);
    }
  }
}

}  // namespace
}  // namespace zero::train
