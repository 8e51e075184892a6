// Reductions in rank order by exchanges between all ranks, as over NCCL, against those by single
// messages. Everything but NCCL itself is tested here, on the CPU.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <tests/support/ranks.hpp>
#include <zero/base/error.hpp>
#include <zero/distributed/communicator.hpp>
#include <zero/distributed/rank_order.hpp>
#include <zero/distributed/reduce_by_exchange.hpp>
#include <zero/memory/accounting.hpp>

namespace zero::dist {
namespace {

using testing::on_ranks;

at::Tensor random(int seed, std::int64_t n, at::ScalarType dtype) {
  at::manual_seed(static_cast<std::uint64_t>(seed));
  return at::randn({n}).to(dtype);
}

// An exchange made of messages; notes how many there were.
Exchange by_messages(Communicator& c, int& exchanges) {
  return [&c, &exchanges](const std::vector<at::Tensor>& incoming,
                          const std::vector<at::Tensor>& outgoing) {
    ++exchanges;
    std::vector<Work> pending;
    for (int p = 0; p < c.size(); ++p) {
      const auto i = static_cast<std::size_t>(p);
      if (incoming[i].numel() > 0) pending.push_back(c.recv(incoming[i], p, Purpose::kControl));
      if (outgoing[i].numel() > 0) pending.push_back(c.send(outgoing[i], p, Purpose::kControl));
    }
    for (Work& one : pending) one.wait();
  };
}

std::vector<at::Tensor> nearly_equal_pieces(const at::Tensor& tensor, int size) {
  std::vector<at::Tensor> pieces;
  for (int r = 0; r < size; ++r) {
    const std::int64_t begin = piece_begin(tensor.numel(), r, size);
    pieces.push_back(tensor.narrow(0, begin, piece_begin(tensor.numel(), r + 1, size) - begin));
  }
  return pieces;
}

class ReduceByExchange : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, ReduceByExchange, ::testing::Values(2, 3, 4),
                         [](const auto& info) { return fmt::format("N{}", info.param); });

TEST_P(ReduceByExchange, AllReduceHasTheBitsOfPairwiseMessages) {
  on_ranks(GetParam(), [](Communicator& c) {
    for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
      for (const std::int64_t n : {1, 2, 3, 1000, 100003}) {
        at::Tensor expected = random(c.rank(), n, dtype);
        const at::Tensor exchanged = expected.clone();
        c.all_reduce(expected, Purpose::kGradient).wait();
        const auto pieces = nearly_equal_pieces(exchanged, c.size());
        int exchanges = 0;
        reduce_by_exchange(pieces, pieces[static_cast<std::size_t>(c.rank())], c.rank(), c.size(),
                           /*gather=*/true, by_messages(c, exchanges));
        EXPECT_TRUE(at::equal(exchanged, expected)) << n << " of " << c10::toString(dtype);
        EXPECT_EQ(exchanges, 2);
      }
    }
  });
}

TEST_P(ReduceByExchange, ReduceToOneRankLeavesTheOthersAsTheyAre) {
  on_ranks(GetParam(), [](Communicator& c) {
    for (int root = 0; root < c.size(); ++root) {
      at::Tensor expected = random(c.rank(), 777, at::kFloat);
      const at::Tensor exchanged = expected.clone();
      c.reduce(expected, root, Purpose::kGradient, ReduceOp::kSum).wait();
      std::vector<at::Tensor> pieces(static_cast<std::size_t>(c.size()), exchanged.narrow(0, 0, 0));
      pieces[static_cast<std::size_t>(root)] = exchanged;
      int exchanges = 0;
      reduce_by_exchange(pieces, pieces[static_cast<std::size_t>(c.rank())], c.rank(),
                         /*divisor=*/1,
                         /*gather=*/false, by_messages(c, exchanges));
      EXPECT_TRUE(at::equal(exchanged, expected)) << "root " << root;
      EXPECT_EQ(exchanges, 1);
    }
  });
}

// Pieces of different lengths may need different numbers of windows; ranks must not.
TEST(ReduceByExchangeWindows, AreTheSameInNumberOnAllRanksAndBounded) {
  on_ranks(3, [](Communicator& c) {
    constexpr std::int64_t kWindow = (std::int64_t{32} << 20) / 3 / 4;
    // Rank 0's piece takes two windows by one element, the others' fit into one.
    const std::int64_t n = 3 * kWindow + 1;
    at::Tensor expected = random(c.rank(), n, at::kFloat);
    const at::Tensor exchanged = expected.clone();
    c.all_reduce(expected, Purpose::kGradient).wait();
    const auto pieces = nearly_equal_pieces(exchanged, c.size());
    memory::reset_peaks();
    const std::int64_t before = memory::snapshot()[memory::Category::kCommunication];
    int exchanges = 0;
    reduce_by_exchange(pieces, pieces[static_cast<std::size_t>(c.rank())], c.rank(), c.size(),
                       /*gather=*/true, by_messages(c, exchanges));
    EXPECT_TRUE(at::equal(exchanged, expected));
    EXPECT_EQ(exchanges, 4);
    EXPECT_LE(memory::snapshot().peak_of(memory::Category::kCommunication) - before, 32 << 20);
  });
}

TEST(SumByOperations, HasTheBitsOfTheSumInRankOrder) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf, at::kInt}) {
    std::vector<at::Tensor> inputs;
    for (int r = 0; r < 5; ++r) inputs.push_back((random(r, 10007, at::kFloat) * 100).to(dtype));
    const int divisor = dtype == at::kInt ? 1 : 5;
    at::Tensor expected = at::empty_like(inputs[0]);
    sum_in_rank_order(expected, inputs, divisor);
    const at::Tensor& output = inputs[2];  // in place of one of them
    sum_by_operations(output, inputs, divisor);
    EXPECT_TRUE(at::equal(output, expected)) << c10::toString(dtype);
  }
}

TEST(SumByOperations, DoesNotAverageIntegers) {
  const std::vector<at::Tensor> inputs(2, at::ones({3}, at::kInt));
  const at::Tensor output = at::empty({3}, at::kInt);
  EXPECT_THROW(sum_by_operations(output, inputs, 2), Error);
}

}  // namespace
}  // namespace zero::dist
