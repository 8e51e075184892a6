// Every collective against a closed form, its traffic against its formula, and what happens when
// ranks go wrong.

#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <csignal>
#include <limits>

#include <tests/support/ranks.hpp>
#include <zero/base/error.hpp>
#include <zero/distributed/communicator.hpp>
#include <zero/distributed/rank_order.hpp>
#include <zero/memory/accounting.hpp>

namespace zero::dist {
namespace {

using testing::on_ranks;
using testing::RankOptions;
using testing::ranks_ended;

// A different value on every rank at every place, exact in every dtype as long as n is small.
at::Tensor unique(int rank, std::int64_t n, at::ScalarType dtype = at::kFloat) {
  return (at::arange(n, at::kLong).remainder(11) + rank * 11).to(dtype);
}

Traffic sent_by(Communicator& c, const std::function<Work()>& operation) {
  const Traffic before = c.traffic();
  operation().wait();
  return c.traffic().since(before);
}

std::vector<std::int64_t> sizes(int n) { return {0, 1, n - 1, n, n + 1, 97}; }

class CollectivesOnGloo : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, CollectivesOnGloo, ::testing::Values(1, 2, 3, 4),
                         [](const auto& info) { return fmt::format("N{}", info.param); });

TEST_P(CollectivesOnGloo, GiveWhatTheyPromise) {
  on_ranks(GetParam(), [](Communicator& c) {
    const int n = c.size();
    for (const std::int64_t size : sizes(n)) {
      at::Tensor sum = at::zeros({size});
      for (int r = 0; r < n; ++r) sum += unique(r, size);

      at::Tensor t = unique(c.rank(), size);
      c.all_reduce(t, Purpose::kGradient, ReduceOp::kSum).wait();
      EXPECT_TRUE(at::equal(t, sum)) << "all_reduce " << size;

      for (int root = 0; root < n; ++root) {
        t = unique(c.rank(), size);
        c.reduce(t, root, Purpose::kGradient).wait();
        EXPECT_TRUE(at::equal(t, c.rank() == root ? sum / n : unique(c.rank(), size)))
            << "reduce " << size << " to " << root;
        t = unique(c.rank(), size);
        c.broadcast(t, root, Purpose::kParameter).wait();
        EXPECT_TRUE(at::equal(t, unique(root, size))) << "broadcast " << size;
      }

      const at::Tensor pieces = unique(c.rank(), size * n);
      at::Tensor piece = at::empty({size});
      c.reduce_scatter(piece, pieces, Purpose::kGradient, ReduceOp::kSum).wait();
      at::Tensor total = at::zeros({size * n});
      for (int r = 0; r < n; ++r) total += unique(r, size * n);
      EXPECT_TRUE(at::equal(piece, total.narrow(0, c.rank() * size, size))) << "reduce_scatter";

      at::Tensor all = at::empty({size * n});
      c.all_gather(all, unique(c.rank(), size), Purpose::kParameter).wait();
      for (int r = 0; r < n; ++r) {
        EXPECT_TRUE(at::equal(all.narrow(0, r * size, size), unique(r, size))) << "all_gather";
      }
      // The own piece may hold anything, so that nobody can rely on a copy. Native ones make it.
      all = at::full({size * n}, -1.0F);
      c.all_gather(all, unique(c.rank(), size), Purpose::kParameter, /*copy_own_chunk=*/false)
          .wait();
      for (int r = 0; r < n; ++r) {
        const bool left = r == c.rank() && c.order() == ReductionOrder::kRankOrdered;
        EXPECT_TRUE(at::equal(all.narrow(0, r * size, size),
                              left ? at::full({size}, -1.0F) : unique(r, size)))
            << "all_gather without the own piece";
      }

      at::Tensor swapped = at::empty({size * n});
      c.all_to_all(swapped, pieces, Purpose::kControl).wait();
      for (int r = 0; r < n; ++r) {
        EXPECT_TRUE(at::equal(swapped.narrow(0, r * size, size),
                              unique(r, size * n).narrow(0, c.rank() * size, size)))
            << "all_to_all";
      }
    }
    c.barrier();
  });
}

TEST_P(CollectivesOnGloo, TakeEveryDtype) {
  on_ranks(GetParam(), [](Communicator& c) {
    for (const auto dtype :
         {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf, at::kLong, at::kInt, at::kByte}) {
      at::Tensor sum = at::zeros({37}, at::kLong);
      for (int r = 0; r < c.size(); ++r) sum += unique(r, 37, at::kLong);
      at::Tensor t = unique(c.rank(), 37, dtype);
      c.all_reduce(t, Purpose::kGradient, ReduceOp::kSum).wait();
      EXPECT_TRUE(at::equal(t, sum.to(dtype))) << dtype;
    }
  });
}

TEST_P(CollectivesOnGloo, CountTheBytesThatTheySend) {
  on_ranks(GetParam(), [](Communicator& c) {
    const int n = c.size();
    const std::int64_t bytes = 4 * 12 * n;  // divisible by every N here
    const auto sent = [&](const auto& operation) { return sent_by(c, operation).bytes(); };
    at::Tensor t = at::zeros({12 * n});
    at::Tensor piece = at::zeros({12});
    at::Tensor other = at::zeros({12 * n});
    const auto p = Purpose::kGradient;
    EXPECT_EQ(sent([&] { return c.all_reduce(t, p); }), 2 * bytes * (n - 1) / n);
    EXPECT_EQ(sent([&] { return c.reduce_scatter(piece, t, p); }), bytes * (n - 1) / n);
    EXPECT_EQ(sent([&] { return c.all_gather(t, piece, p); }), bytes * (n - 1) / n);
    EXPECT_EQ(sent([&] { return c.all_to_all(other, t, p); }), bytes * (n - 1) / n);
    EXPECT_EQ(sent([&] { return c.broadcast(t, 0, p); }), c.rank() == 0 ? bytes * (n - 1) : 0);
    EXPECT_EQ(sent([&] { return c.reduce(t, 0, p); }), c.rank() == 0 ? 0 : bytes);
    for (const std::int64_t odd : {1, 5, 97}) {
      at::Tensor small = at::zeros({odd});
      EXPECT_EQ(sent([&] { return c.all_reduce(small, p); }),
                Communicator::all_reduce_bytes(odd, 4, c.rank(), n));
    }
  });
}

// 3 survives beside 1e8 only if it is added last.
TEST(RankOrder, IsKeptAtThreeRanksWhereverABufferIsCut) {
  on_ranks(3, [](Communicator& c) {
    const float values[] = {1e8F, -1e8F, 3.0F};
    const float in_order = (values[0] + values[1]) + values[2];
    ASSERT_NE(in_order, values[0] + (values[1] + values[2]));
    at::Tensor whole = at::full({1000}, values[c.rank()]);
    c.all_reduce(whole, Purpose::kGradient, ReduceOp::kSum).wait();
    EXPECT_TRUE(at::equal(whole, at::full({1000}, in_order)));
    at::Tensor cut = at::full({1000}, values[c.rank()]);
    for (const auto& [begin, length] : {std::pair{0, 7}, {7, 600}, {607, 393}}) {
      c.all_reduce(cut.narrow(0, begin, length), Purpose::kGradient, ReduceOp::kSum).wait();
    }
    EXPECT_TRUE(at::equal(cut, whole));
  });
}

// What arrives from peers, however long the tensor and however many peers there are. 3 survives
// beside 1e8 only if it is added last, in every window.
TEST(RankOrder, HoldsOverSeveralWindowsOfScratchWhichStaysWithin32MiB) {
  for (const int ranks : {2, 3}) {
    on_ranks(ranks, [](Communicator& c) {
      const std::int64_t scratch = std::int64_t{32} << 20;  // as docs/communication.md says
      const std::int64_t n = 3 * scratch / 4 + 5;  // float32: a piece is longer than two windows
      const float values[] = {1e8F, -1e8F, 3.0F};
      at::Tensor t = at::full({n}, values[c.rank()]);
      at::Tensor expected = at::full({n}, c.size() == 3 ? 1.0F : 0.0F);
      t[n - 1] *= 2;
      expected[n - 1] *= 2;
      const auto peak_of = [](const std::function<Work()>& reduction) {
        memory::reset_peaks();
        reduction().wait();
        return memory::snapshot().peak_of(memory::Category::kCommunication);
      };
      const std::int64_t of_all = peak_of([&] { return c.all_reduce(t, Purpose::kGradient); });
      EXPECT_TRUE(at::equal(t, expected));
      EXPECT_LE(of_all, scratch);
      EXPECT_LE(peak_of([&] { return c.reduce(t, c.size() - 1, Purpose::kGradient); }), scratch);
      EXPECT_TRUE(at::equal(t, expected));
      const std::int64_t m = n / c.size();
      at::Tensor piece = at::empty({m});
      const at::Tensor pieces = at::full({m * c.size()}, values[c.rank()]);
      c.reduce_scatter(piece, pieces, Purpose::kGradient).wait();
      EXPECT_TRUE(at::equal(piece, expected.narrow(0, 0, m)));
      // Over TCP the windows are full, or nothing was measured.
      if (c.transport().starts_with("TCP")) {
        EXPECT_EQ(of_all, scratch);
      }
    });
  }
}

TEST(RankOrder, ReductionsThatOverlapUseEachOthersScratch) {
  on_ranks(2, [](Communicator& c) {
    if (!c.transport().starts_with("TCP")) return;  // on one host the scratch stays for good
    at::Tensor tensors[] = {at::full({4096}, 1.0F), at::full({4096}, 2.0F), at::full({4096}, 3.0F)};
    const auto start = [&](int i) { return c.all_reduce(tensors[i], Purpose::kGradient); };
    const auto held = [] {
      return memory::snapshot()[memory::Category::kCommunication];  // bytes
    };
    const std::int64_t piece = 4096 / 2 * 4;
    Work first = start(0);
    EXPECT_EQ(held(), piece);
    Work second = start(1);
    EXPECT_EQ(held(), 2 * piece);
    first.wait();
    EXPECT_EQ(held(), 2 * piece);  // kept for the next
    Work third = start(2);
    EXPECT_EQ(held(), 2 * piece);  // which has it
    second.wait();
    third.wait();
    EXPECT_EQ(held(), 0);
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(at::equal(tensors[i], at::full({4096}, i + 1.0F)));
  });
}

// Whatever is added up together, wherever it begins, and by whatever it is divided.
TEST(RankOrder, SumsAreThoseOfLibTorchToTheLastBit) {
  at::manual_seed(5);
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    for (const std::int64_t n : {0, 1, 15, 16, 17, 100}) {
      for (const int divisor : {1, 2, 3, 4, 7, 8}) {
        SCOPED_TRACE(fmt::format("{} {} by {}", c10::toString(dtype), n, divisor));
        // From values that vanish when they are halved to those that hardly fit.
        const auto input = [&] {
          return at::randn({n}, dtype) * at::randint(-44, 38, {n}).to(dtype).mul(2.302585).exp();
        };
        std::vector<at::Tensor> inputs = {input(), input(), input()};
        const at::Tensor by = at::full({}, divisor, dtype);
        const at::Tensor expected = (inputs[0] + inputs[1] + inputs[2]).div(by);
        for (const std::int64_t begin : {0, 1}) {
          const at::Tensor apart = at::zeros({n + 1}, dtype).narrow(0, begin, n);
          sum_in_rank_order(apart, inputs, divisor);
          EXPECT_TRUE(at::equal(apart, expected)) << "from " << begin;
        }
        sum_in_rank_order(inputs[1], inputs, divisor);
        EXPECT_TRUE(at::equal(inputs[1], expected)) << "in place";
      }
    }
  }
}

TEST(RankOrder, HalfTypesAreRoundedOnce) {
  // 256 + 1 is not a bfloat16: rounded after every addition, 256 + 1 + 1 would stay 256.
  const auto value = [](float v) { return at::full({1}, v).to(at::kBFloat16); };
  at::Tensor out = at::empty({1}, at::kBFloat16);
  sum_in_rank_order(out, {value(256), value(1), value(1)});
  EXPECT_EQ(out.item<float>(), 258.0F);
}

TEST(RankOrder, SaysWhetherTheSumIsFinite) {
  const double inf = std::numeric_limits<double>::infinity();
  for (const auto dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    for (const std::int64_t n : {1, 15, 16, 17, 100}) {
      SCOPED_TRACE(fmt::format("{} {}", c10::toString(dtype), n));
      const at::Tensor one = at::ones({n}, dtype);
      at::Tensor out = at::empty({n}, dtype);
      EXPECT_TRUE(sum_in_rank_order(out, {one, one}, 2).finite);
      for (const double value : {inf, -inf, std::nan("")}) {
        for (const std::int64_t where : {std::int64_t{0}, n / 2, n - 1}) {
          at::Tensor bad = at::ones({n}, dtype);
          bad[where].fill_(value);
          EXPECT_FALSE(sum_in_rank_order(out, {one, bad}, 2).finite) << value << " at " << where;
          EXPECT_TRUE(sum_in_rank_order(out.copy_(one), {bad, out}, 2).overwritten_finite);
          EXPECT_FALSE(sum_in_rank_order(out.copy_(bad), {one, out}, 2).overwritten_finite);
        }
      }
      const double most = dtype == at::kHalf ? 65504.0 : dtype == at::kDouble ? 1.7e308 : 3.3e38;
      const at::Tensor large = at::full({n}, most, dtype);
      EXPECT_FALSE(sum_in_rank_order(out, {large, large}).finite) << "a sum that overflows";
    }
  }
  at::Tensor whole = at::ones({20}, at::kInt);
  EXPECT_TRUE(sum_in_rank_order(whole, {whole, whole}).finite);
}

TEST_P(CollectivesOnGloo, GradientsTellWhoseContributionIsNotFinite) {
  on_ranks(GetParam(), [](Communicator& c) {
    if (!c.checks_gradients()) return;  // one rank: nothing is added up
    const int culprit = c.size() - 1;
    const auto contribution = [&](bool bad) {
      at::Tensor tensor = at::ones({3 * c.size()});
      if (bad && c.rank() == culprit) tensor.fill_(std::nan(""));
      return tensor;
    };
    const auto expect = [&](bool bad, const char* what) {
      std::vector<bool> expected(static_cast<std::size_t>(c.size()), false);
      expected[static_cast<std::size_t>(culprit)] = bad;
      EXPECT_EQ(c.take_not_finite(), expected) << what;
    };
    for (const bool bad : {true, false}) {
      at::Tensor piece = at::empty({3});
      c.reduce_scatter(piece, contribution(bad), Purpose::kGradient).wait();
      expect(bad, "reduce_scatter");
      at::Tensor all = contribution(bad);
      c.all_reduce(all, Purpose::kGradient).wait();
      expect(bad, "all_reduce");
      at::Tensor root = contribution(bad);
      c.reduce(root, /*root=*/0, Purpose::kGradient).wait();
      expect(bad && c.rank() == 0, "reduce");
      at::Tensor control = contribution(bad);
      c.all_reduce(control, Purpose::kControl).wait();
      expect(false, "what is no gradient");
    }
  });
}

TEST(BadCalls, AreRefusedBeforeAnythingIsSent) {
  on_ranks(2, [](Communicator& c) {
    const Traffic before = c.traffic();
    const auto p = Purpose::kGradient;
    EXPECT_THROW(c.all_reduce(at::zeros({4, 4}).t(), p), Error);
    EXPECT_THROW(c.broadcast(at::zeros({4}), 2, p), Error);
    EXPECT_THROW(c.reduce(at::zeros({4}), -1, p), Error);
    EXPECT_THROW(c.reduce_scatter(at::zeros({4}), at::zeros({7}), p), Error);
    EXPECT_THROW(c.all_gather(at::zeros({4}), at::zeros({4}), p), Error);
    EXPECT_THROW(c.all_reduce(at::Tensor(), p), Error);
    EXPECT_EQ(c.traffic().since(before).bytes(), 0);
    c.barrier();  // the group still works
  });
}

void expect_all_said(const std::vector<RankExit>& exits, const std::vector<int>& ranks,
                     const std::string& text) {
  for (const int rank : ranks) {
    const RankExit& exit = exits[static_cast<std::size_t>(rank)];
    EXPECT_EQ(exit.exit_code, 1) << exit.output;
    EXPECT_FALSE(exit.killed);
    EXPECT_NE(exit.output.find(text), std::string::npos) << exit.output;
  }
}

TEST(Agreement, NamesBothSidesOnEveryRank) {
  const auto exits = ranks_ended({.world_size = 2, .check_collectives = true}, [](Communicator& c) {
    c.all_reduce(at::zeros({10 + c.rank()}), Purpose::kGradient).wait();
  });
  expect_all_said(exits, {0, 1}, "all_reduce of Float [10] for gradient, rank 1 has");
}

TEST(Faults, ARankThatStandsStillIsNamedWhenTimeIsUp) {
  const auto exits =
      ranks_ended({.world_size = 2, .timeout = std::chrono::seconds(1)}, [](Communicator& c) {
        if (c.rank() == 1) ::raise(SIGSTOP);
        at::Tensor t = at::zeros({1000});
        c.all_reduce(t, Purpose::kGradient).wait();
      });
  expect_all_said(exits, {0}, "nothing from rank 1 within 1");
  EXPECT_TRUE(exits[1].killed);
}

TEST(Handles, MustBeWaitedOn) {
  const auto exits =
      ranks_ended({.world_size = 2, .timeout = std::chrono::seconds(2)}, [](Communicator& c) {
        at::Tensor t = at::zeros({10});
        c.all_reduce(t, Purpose::kGradient);
      });
  // The first rank to drop its handle ends here; the other may do so too, or find its peer gone.
  EXPECT_TRUE(std::any_of(exits.begin(), exits.end(), [](const RankExit& exit) {
    return exit.signal == SIGABRT && exit.output.find("never waited on") != std::string::npos;
  })) << describe_failures(exits);
  for (const RankExit& exit : exits) EXPECT_FALSE(exit.ok());
}

// Sums in the order that Gloo likes, beside those in rank order.
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

// What a program counts on does not depend on the order, with one exception: Gloo has no
// reduce-scatter, and does a whole all-reduce in its place.
TEST(NativeOrder, CountsWhatRankOrderCounts) {
  const RankOptions native = {.world_size = 3, .order = ReductionOrder::kNative};
  on_ranks(native, [](Communicator& c) {
    const auto sent = [&](const auto& operation) {
      const Traffic traffic = sent_by(c, operation);
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
