// Every collective against a closed form, its traffic against its formula, and what happens when
// ranks go wrong.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <csignal>
#include <limits>
#include <optional>

#include <tests/support/ranks.hpp>
#include <tests/support/set_variable.hpp>
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

// Every backend for CPU tensors, by ConnectOptions::backend and transport.
struct Way {
  const char* name;
  const char* backend;
  const char* transport;
};
const std::vector<Way> kWays = {{"host", "gloo", "host"}, {"tcp", "gloo", "tcp"}};

// What holds over each of them.
class EachBackend : public ::testing::TestWithParam<std::tuple<Way, int>> {
 protected:
  void SetUp() override {
    transport_.emplace("ZERO_TRANSPORT", std::get<Way>(GetParam()).transport);
  }

  RankOptions ranks() const {
    return {.world_size = std::get<int>(GetParam()), .backend = std::get<Way>(GetParam()).backend};
  }

 private:
  std::optional<testing::SetVariable> transport_;
};
std::string name_of(const ::testing::TestParamInfo<EachBackend::ParamType>& info) {
  return fmt::format("{}_N{}", std::get<Way>(info.param).name, std::get<int>(info.param));
}
INSTANTIATE_TEST_SUITE_P(Ranks, EachBackend,
                         ::testing::Combine(::testing::ValuesIn(kWays),
                                            ::testing::Values(1, 2, 3, 4)),
                         name_of);

TEST_P(EachBackend, GivesWhatCollectivesPromise) {
  on_ranks(ranks(), [](Communicator& c) {
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
      // The own piece may hold anything, so that nobody can rely on a copy.
      all = at::full({size * n}, -1.0F);
      c.all_gather(all, unique(c.rank(), size), Purpose::kParameter, /*copy_own_chunk=*/false)
          .wait();
      for (int r = 0; r < n; ++r) {
        const bool left = r == c.rank();
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

TEST_P(EachBackend, TakesEveryDtype) {
  on_ranks(ranks(), [](Communicator& c) {
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

TEST_P(EachBackend, SendsWhatIsCounted) {
  on_ranks(ranks(), [](Communicator& c) {
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
                all_reduce_bytes(odd, 4, c.rank(), n));
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

// For any number of terms, any begin in memory, and any divisor.
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

TEST_P(EachBackend, TellsWhoseGradientIsNotFinite) {
  on_ranks(ranks(), [](Communicator& c) {
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
      EXPECT_EQ(c.not_finite().take(), expected) << what;
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

// In float32, where it is added up, the sum is finite: rounding makes it infinite, on the rank that
// has it.
TEST(RoundedSums, AreFoundWhereTheyOverflow) {
  on_ranks(2, [](Communicator& c) {
    for (const double value : {30000., 40000.}) {
      const std::vector<bool> none(2, false);
      std::vector<bool> mine = none;
      mine[static_cast<std::size_t>(c.rank())] = value > 32752;  // half of the largest
      const Reduction sum = {ReduceOp::kSum, ReduceType::kFloat32};
      const at::Tensor all = at::full({4}, value, at::kHalf);
      at::Tensor piece = at::empty({2}, at::kHalf);
      c.reduce_scatter(piece, all, Purpose::kGradient, sum).wait();
      EXPECT_EQ(c.not_finite().take(), mine) << "reduce_scatter of " << value;
      c.all_reduce(all, Purpose::kControl, sum).wait();
      EXPECT_EQ(c.not_finite().take(), none) << "what is no gradient, of " << value;
      c.all_reduce(all.fill_(value), Purpose::kGradient, sum).wait();
      EXPECT_EQ(c.not_finite().take(), mine) << "all_reduce of " << value;
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

struct CallOfRank {
  const char* text;
  std::function<void(Communicator&)> call;
};
struct Mismatch {
  CallOfRank of_rank_0;
  CallOfRank of_others;
};

CallOfRank reducing(const char* text, std::int64_t elements, at::ScalarType dtype,
                    Purpose purpose) {
  return {text, [=](Communicator& c) {
            at::Tensor t = at::zeros({elements}, dtype);
            c.all_reduce(t, purpose, ReduceOp::kSum).wait();
          }};
}
CallOfRank broadcasting(const char* text, int root) {
  return {text, [=](Communicator& c) {
            at::Tensor t = at::zeros({10});
            c.broadcast(t, root, Purpose::kParameter).wait();
          }};
}
const CallOfRank kTen =
    reducing("all_reduce of 10 Float for gradient", 10, at::kFloat, Purpose::kGradient);
const CallOfRank kTexts = {"exchange of texts", [](Communicator& c) { c.exchange("hello"); }};

// One difference each: elements, dtype, purpose, operation, root, a collective or texts, function.
const std::vector<Mismatch> kMismatches = {
    {kTen, reducing("all_reduce of 11 Float for gradient", 11, at::kFloat, Purpose::kGradient)},
    {kTen, reducing("all_reduce of 10 Int for gradient", 10, at::kInt, Purpose::kGradient)},
    {kTen, reducing("all_reduce of 10 Float for control", 10, at::kFloat, Purpose::kControl)},
    {kTen, broadcasting("broadcast of 10 Float for parameter, root 1", 1)},
    {broadcasting("broadcast of 10 Float for parameter, root 0", 0),
     broadcasting("broadcast of 10 Float for parameter, root 1", 1)},
    {kTen, kTexts},
    {{"Engine::save (exchange of texts)",
      [](Communicator& c) {
        const CallScope scope(c, "Engine::save");
        kTexts.call(c);
      }},
     {"Engine::load (exchange of texts)", [](Communicator& c) {
        const CallScope scope(c, "Engine::load");
        kTexts.call(c);
      }}}};

// Long before the time limit, which is longer than a test may last. Nobody gets wrong values.
TEST_P(EachBackend, NamesBothCallsOnAllRanksThatAreInDifferentOnes) {
  RankOptions options = ranks();
  if (options.world_size == 1 || options.world_size == 4) return;
  options.timeout = std::chrono::minutes(5);
  for (const Mismatch& mismatch : kMismatches) {
    const auto ends = ranks_ended(options, [&](Communicator& c) {
      c.barrier();
      (c.rank() == 0 ? mismatch.of_rank_0 : mismatch.of_others).call(c);
      c.barrier();  // a broadcast may have been complete for a rank
    });
    testing::expect_errors(ends, ::testing::AllOf(::testing::HasSubstr(mismatch.of_rank_0.text),
                                                  ::testing::HasSubstr(mismatch.of_others.text)));
  }
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

}  // namespace
}  // namespace zero::dist
