#include "batch.hpp"

#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <functional>
#include <utility>
#include <vector>

namespace zero::data {
namespace {

at::Tensor ids(const std::vector<std::int64_t>& values) { return at::tensor(values, at::kLong); }

TEST(BatchDigest, DiffersIfAnyFieldOrTheOrderOfBatchesDoes) {
  const auto make = [] {
    return Batch{.inputs = ids({1, 2, 3}), .targets = ids({2, 3, 1}), .loss_terms = 3};
  };
  EXPECT_EQ(digest(make()), digest(make()));
  const std::vector<std::function<void(Batch&)>> changes = {
      [](Batch& b) { b.inputs = ids({1, 2, 4}); },      [](Batch& b) { b.inputs = ids({1, 2}); },
      [](Batch& b) { b.targets = ids({3, 2, 1}); },     [](Batch& b) { b.targets = at::Tensor(); },
      [](Batch& b) { b.lengths = ids({3}); },           [](Batch& b) { b.loss_terms = 2; },
      [](Batch& b) { std::swap(b.inputs, b.targets); },
  };
  for (std::size_t i = 0; i < changes.size(); ++i) {
    Batch changed = make();
    changes[i](changed);
    // 53 bits are what a double holds.
    EXPECT_NE(digest(changed) >> 11, digest(make()) >> 11) << i;
    EXPECT_NE(digest(changed, digest(make())), digest(make(), digest(changed))) << i;
  }
}

}  // namespace
}  // namespace zero::data
