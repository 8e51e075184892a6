// Sums in the order that Gloo likes, beside those in rank order.

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <tests/support/ranks.hpp>
#include <zero/distributed/communicator.hpp>
#include <zero/distributed/rank_order.hpp>

namespace zero::dist {
namespace {

using testing::on_ranks;
using testing::RankOptions;

// Numbers between 1 and 2, as each rank and all others know them: a sum is far from 0.
at::Tensor contribution(int rank, std::int64_t n) {
  return at::rand({n}, at::detail::createCPUGenerator(static_cast<std::uint64_t>(rank + 1))) + 1;
}

TEST(NativeOrder, GivesTheSumsOfRankOrderWithinRounding) {
  const RankOptions native = {.world_size = 3, .order = ReductionOrder::kNative};
  on_ranks(native, [](Communicator& c) {
    const int n = c.size();
    const std::int64_t size = 999;
    std::vector<at::Tensor> all;
    for (int r = 0; r < n; ++r) all.push_back(contribution(r, size * n));
    const at::Tensor& mine = all[static_cast<std::size_t>(c.rank())];
    bool other_order = false;
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAverage}) {
      at::Tensor expected = at::empty({size * n});
      sum_in_rank_order(expected, all, op == ReduceOp::kAverage ? n : 1);
      at::Tensor whole = mine.clone();
      c.all_reduce(whole, Purpose::kGradient, op).wait();
      EXPECT_TRUE(at::allclose(whole, expected, /*rtol=*/1e-6, /*atol=*/0));
      other_order = other_order || !at::equal(whole, expected);
      at::Tensor piece = at::empty({size});
      c.reduce_scatter(piece, mine.clone(), Purpose::kGradient, op).wait();
      const at::Tensor of_rank = expected.narrow(0, c.rank() * size, size);
      EXPECT_TRUE(at::allclose(piece, of_rank, /*rtol=*/1e-6, /*atol=*/0));
    }
    EXPECT_TRUE(other_order) << "Gloo's ring adds in another order";
    at::Tensor gathered = at::empty({size * n * n});
    c.all_gather(gathered, mine, Purpose::kParameter).wait();
    EXPECT_TRUE(at::equal(gathered, at::cat(all)));
  });
}

// What a program counts on does not depend on the order, but for one: Gloo has no reduce-scatter,
// and does a whole all-reduce in its place.
TEST(NativeOrder, CountsWhatRankOrderCounts) {
  const RankOptions native = {.world_size = 3, .order = ReductionOrder::kNative};
  on_ranks(native, [](Communicator& c) {
    const auto sent = [&](const std::function<Work()>& operation) {
      const Traffic before = c.traffic();
      operation().wait();
      const Traffic traffic = c.traffic().since(before);
      EXPECT_EQ(traffic.calls(Purpose::kGradient), 1);
      return traffic.bytes(Purpose::kGradient);
    };
    at::Tensor whole = at::zeros({36});
    at::Tensor piece = at::zeros({12});
    const std::int64_t copy = 4 * 36;
    const auto p = Purpose::kGradient;
    EXPECT_EQ(sent([&] { return c.all_reduce(whole, p); }), 2 * copy * 2 / 3);
    EXPECT_EQ(sent([&] { return c.all_gather(whole, piece, p); }), copy * 2 / 3);
    EXPECT_EQ(sent([&] { return c.reduce_scatter(piece, whole, p); }), 2 * copy * 2 / 3);
    at::Tensor odd = at::zeros({5});
    EXPECT_EQ(sent([&] { return c.all_reduce(odd, p); }),
              Communicator::all_reduce_bytes(5, 4, c.rank(), 3));
  });
}

}  // namespace
}  // namespace zero::dist
