// Collectives that know hosts: the bits of direct sends, and the bytes of the formulas. The hosts
// are groups of this machine's ranks (Communicator::set_hosts()); tests/hosts has real ones.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <limits>
#include <thread>

#include <tests/support/between_hosts.hpp>
#include <tests/support/error_of.hpp>
#include <tests/support/ranks.hpp>
#include <zero/distributed/communicator.hpp>
#include <zero/distributed/hierarchical/host_routes.hpp>
#include <zero/distributed/not_finite.hpp>

namespace zero::dist {
namespace {

using testing::BetweenHosts;
using testing::on_ranks;

struct Layout {
  int hosts, per_host;
  int ranks() const { return hosts * per_host; }
  // Consecutive ranks.
  std::vector<int> by_rank() const {
    std::vector<int> hosts_of;
    for (int r = 0; r < ranks(); ++r) hosts_of.push_back(r / per_host);
    return hosts_of;
  }
};

// Rounds differently in every other order of addition.
at::Tensor values(int rank, std::int64_t elements, at::ScalarType dtype) {
  at::manual_seed(static_cast<std::uint64_t>(rank) * 1000 + static_cast<std::uint64_t>(elements));
  if (!at::isFloatingType(dtype)) return at::randint(0, 9, {elements}).to(dtype);
  return at::randn({elements}).mul(at::randn({elements}).mul(4).exp()).to(dtype);
}

// What every operation leaves in its tensors on this rank; all of them are in flight at once.
std::vector<at::Tensor> results(Communicator& c, std::int64_t elements, at::ScalarType dtype) {
  const int n = c.size();
  const Reduction sum(ReduceOp::kSum);
  const Reduction mean(at::isFloatingType(dtype) ? ReduceOp::kAverage : ReduceOp::kSum);
  std::vector<at::Tensor> tensors;
  std::vector<Work> work;
  const auto made = [&](const at::Tensor& tensor) { return tensors.emplace_back(tensor); };
  for (int root = 0; root < n; ++root) {
    work.push_back(
        c.reduce(made(values(c.rank(), elements, dtype)), root, Purpose::kGradient, mean));
    work.push_back(c.broadcast(made(values(c.rank(), elements, dtype)), root, Purpose::kParameter));
  }
  work.push_back(c.all_reduce(made(values(c.rank(), elements, dtype)), Purpose::kGradient, mean));
  const at::Tensor pieces = made(values(c.rank(), n * elements, dtype));
  work.push_back(
      c.reduce_scatter(made(at::empty({elements}, dtype)), pieces, Purpose::kGradient, sum));
  const at::Tensor own = values(c.rank(), n * elements, dtype);
  work.push_back(c.reduce_scatter(made(own.narrow(0, c.rank() * elements, elements)), own,
                                  Purpose::kGradient, mean));
  work.push_back(c.all_gather(made(at::empty({n * elements}, dtype)),
                              values(c.rank(), elements, dtype), Purpose::kParameter));
  const at::Tensor whole = made(values(c.rank(), n * elements, dtype));
  work.push_back(
      c.all_gather(whole, whole.narrow(0, c.rank() * elements, elements), Purpose::kParameter));
  // Latest first: ranks may wait in any order.
  for (std::size_t i = work.size(); i-- > 0;) work[i].wait();
  return tensors;
}

class Hierarchical : public ::testing::TestWithParam<Layout> {};
INSTANTIATE_TEST_SUITE_P(Hosts, Hierarchical,
                         ::testing::Values(Layout{2, 2}, Layout{3, 2}, Layout{2, 4}),
                         [](const auto& info) {
                           return fmt::format("{}x{}", info.param.hosts, info.param.per_host);
                         });

TEST_P(Hierarchical, HasTheBitsOfDirectSends) {
  const BetweenHosts forced("hierarchical");
  on_ranks({.world_size = GetParam().ranks()}, [&](Communicator& c) {
    const int n = c.size();
    struct Case {
      at::ScalarType dtype;
      std::vector<std::int64_t> sizes;
    };
    // The last of float32 has several windows in each lane.
    std::vector<Case> cases = {{at::kFloat, {1, n - 1, n, n + 1, 97, 150'001}},
                               {at::kBFloat16, {3, 97, 100'003}}};
    for (const at::ScalarType other : {at::kHalf, at::kDouble, at::kLong, at::kInt, at::kByte}) {
      cases.push_back({other, {1, 97}});
    }
    for (const auto& [dtype, sizes] : cases) {
      for (const std::int64_t size : sizes) {
        c.set_hosts(std::vector<int>(static_cast<std::size_t>(n), 0));
        const std::vector<at::Tensor> direct = results(c, size, dtype);
        c.set_hosts(GetParam().by_rank());
        const std::vector<at::Tensor> found = results(c, size, dtype);
        for (std::size_t i = 0; i < found.size(); ++i) {
          EXPECT_TRUE(at::equal(found[i], direct[i]))
              << c10::toString(dtype) << " " << size << ", operation " << i;
        }
      }
    }
  });
}

// By operation, from each host.
std::vector<std::int64_t> left_hosts(Communicator& c, const Layout& layout,
                                     const std::function<Work()>& operation) {
  const Traffic before = c.traffic();
  operation().wait();
  const std::int64_t mine = c.traffic().since(before).between_hosts();
  std::vector<std::int64_t> sums(static_cast<std::size_t>(layout.hosts));
  int rank = 0;
  for (const std::string& sent : c.exchange(std::to_string(mine))) {
    sums[static_cast<std::size_t>(rank++ / layout.per_host)] += std::stoll(sent);
  }
  return sums;
}

TEST_P(Hierarchical, SendsBetweenHostsWhatTheFormulasSay) {
  const BetweenHosts forced("hierarchical");
  on_ranks({.world_size = GetParam().ranks()}, [&](Communicator& c) {
    const Layout layout = GetParam();
    const auto r = static_cast<std::size_t>(layout.hosts);
    c.set_hosts(layout.by_rank());
    const std::int64_t n = c.size(), elements = n * 30'000;
    for (const auto& [dtype, bytes, sums] :
         {std::tuple{at::kFloat, 4, 4}, {at::kBFloat16, 2, 4}, {at::kDouble, 8, 8}}) {
      const std::int64_t v = elements * bytes, in_sums = elements * sums;
      const at::Tensor whole = values(c.rank(), elements, dtype);
      const at::Tensor piece = at::zeros({elements / n}, dtype);
      EXPECT_EQ(left_hosts(c, layout, [&] { return c.all_gather(whole, piece, Purpose::kSetup); }),
                std::vector<std::int64_t>(r, v / layout.hosts * (layout.hosts - 1)));
      std::vector<std::int64_t> chain(r, in_sums);
      chain.back() = v / layout.hosts * (layout.hosts - 1);
      EXPECT_EQ(
          left_hosts(c, layout, [&] { return c.reduce_scatter(piece, whole, Purpose::kGradient); }),
          chain);
      std::vector<std::int64_t> there_and_back(r, in_sums + v);
      there_and_back.front() = in_sums;
      there_and_back.back() = v;
      EXPECT_EQ(left_hosts(c, layout, [&] { return c.all_reduce(whole, Purpose::kGradient); }),
                there_and_back);
      for (int root = 0; root < n; ++root) {
        const auto host_of_root = static_cast<std::size_t>(root / layout.per_host);
        std::vector<std::int64_t> from_root(r, 0);
        from_root[host_of_root] = v * (layout.hosts - 1);
        EXPECT_EQ(left_hosts(c, layout, [&] { return c.broadcast(whole, root, Purpose::kSetup); }),
                  from_root);
        chain.back() = host_of_root + 1 == r ? 0 : v;
        EXPECT_EQ(left_hosts(c, layout, [&] { return c.reduce(whole, root, Purpose::kGradient); }),
                  chain);
      }
    }
  });
}

// Bytes that leave host 0 in a reduce-scatter of so many elements.
std::int64_t left_by_reduce_scatter(Communicator& c, const Layout& layout, std::int64_t elements,
                                    at::ScalarType dtype = at::kFloat) {
  const at::Tensor whole = at::ones({elements}, dtype);
  const at::Tensor piece = at::empty({elements / c.size()}, dtype);
  return left_hosts(c, layout,
                    [&] { return c.reduce_scatter(piece, whole, Purpose::kGradient); })[0];
}

// Whether `auto` takes it for a reduce-scatter of so many elements.
bool takes(const std::vector<int>& hosts, std::int64_t elements,
           at::ScalarType dtype = at::kFloat) {
  const auto routes = HostRoutes::of(hosts, "auto");
  const Call call{.operation = Operation::kReduceScatter,
                  .purpose = Purpose::kGradient,
                  .sequence = 0,
                  .bytes = 4 * elements,
                  .step = -1,
                  .public_call = {}};
  return routes && routes->take(call, at::empty({elements}, dtype));
}

TEST(HierarchicalChoice, IsWhatLetsFewerBytesLeaveAHost) {
  constexpr std::int64_t kLarge = 1 << 18;
  const Layout two_of_two{2, 2}, two_of_four{2, 4}, four_of_two{4, 2};
  EXPECT_TRUE(takes(two_of_four.by_rank(), kLarge));
  EXPECT_TRUE(takes(four_of_two.by_rank(), kLarge));
  EXPECT_FALSE(takes(two_of_two.by_rank(), kLarge)) << "V either way";
  EXPECT_FALSE(takes(two_of_four.by_rank(), kLarge, at::kBFloat16)) << "sums are float32";
  EXPECT_FALSE(takes(two_of_four.by_rank(), 64)) << "small";
  EXPECT_FALSE(takes({0, 1, 2, 3, 0, 1, 2, 3}, kLarge)) << "not consecutive";
}

TEST(HierarchicalChoice, IsDirectAmongRanksThatReadEachOthersMemory) {
  const BetweenHosts choice("auto");
  on_ranks(8, [](Communicator& c) {
    const Layout two_of_four{2, 4};
    c.set_hosts(two_of_four.by_rank());
    constexpr std::int64_t kLarge = 1 << 18;
    EXPECT_EQ(left_by_reduce_scatter(c, two_of_four, kLarge), 4 * (4 * kLarge) / 2);
  });
}

// On one machine `auto` is direct, so that both are another choice than the others'.
TEST(HierarchicalChoice, OfOneRankThatDiffersIsDirectForAll) {
  const BetweenHosts forced("hierarchical");
  for (const char* other : {"direct", "auto"}) {
    on_ranks(4, [&](Communicator& c) {
      if (c.rank() == 2) ::setenv("ZERO_BETWEEN_HOSTS", other, 1);
      const Layout two_of_two{2, 2};
      c.set_hosts(two_of_two.by_rank());
      const at::Tensor all = at::empty({1 << 20}), piece = at::full({1 << 18}, 1.0 * c.rank());
      EXPECT_EQ(
          left_hosts(c, two_of_two, [&] { return c.all_gather(all, piece, Purpose::kSetup); })[0],
          4 * all.numel());
      EXPECT_TRUE(at::equal(all, at::arange(4).repeat_interleave(1 << 18).to(at::kFloat)));
    });
  }
}

TEST(HierarchicalChoice, RefusesAWayThatIsUnknown) {
  on_ranks(2, [](Communicator& c) {
    ::setenv("ZERO_BETWEEN_HOSTS", "ring", 1);
    testing::expect_error(
        [&] {
          c.set_hosts({0, 1});
        },
        {"between_hosts 'ring' is unknown: auto, direct or hierarchical"});
  });
}

TEST_P(Hierarchical, TellsWhoseGradientIsNotFinite) {
  const BetweenHosts forced("hierarchical");
  on_ranks({.world_size = GetParam().ranks()}, [&](Communicator& c) {
    c.set_hosts(GetParam().by_rank());
    ASSERT_TRUE(c.checks_gradients());
    const int n = c.size();
    // The ranks that have been noted anywhere.
    const auto noted = [&] {
      at::Tensor found = at::zeros({n});
      const std::vector<bool> mine = c.not_finite().take();
      for (int r = 0; r < n; ++r) found[r] = mine[static_cast<std::size_t>(r)] ? 1 : 0;
      c.all_reduce(found, Purpose::kControl, ReduceOp::kSum).wait();
      std::vector<int> ranks;
      for (int r = 0; r < n; ++r) {
        if (found[r].item<float>() > 0) ranks.push_back(r);
      }
      return ranks;
    };
    for (const at::ScalarType dtype : {at::kFloat, at::kHalf}) {
      for (int culprit = 0; culprit < n; ++culprit) {
        at::Tensor tensor = at::ones({97}, dtype);
        if (c.rank() == culprit) tensor[50] = std::numeric_limits<float>::quiet_NaN();
        c.all_reduce(tensor, Purpose::kGradient).wait();
        EXPECT_EQ(noted(), std::vector<int>{culprit}) << c10::toString(dtype);
      }
      at::Tensor large = at::full({97}, dtype == at::kHalf ? 4e4 : 3e38, dtype);
      c.all_reduce(large, Purpose::kGradient, ReduceOp::kSum).wait();
      // Only the sum is too large: on the first host, or where it is rounded, in each lane.
      const Layout layout = GetParam();
      const int host = dtype == at::kHalf ? layout.hosts - 1 : 0;
      std::vector<int> adding;
      for (int place = 0; place < layout.per_host; ++place) {
        adding.push_back(host * layout.per_host + place);
      }
      EXPECT_EQ(noted(), adding) << c10::toString(dtype);
      c.all_reduce(at::ones({97}, dtype), Purpose::kGradient).wait();
      EXPECT_EQ(noted(), std::vector<int>{});
    }
  });
}

// Values that are sums already were noted where they were added.
TEST(HierarchicalSums, OfSumsBlameNoRankForWhatIsNotFinite) {
  const BetweenHosts forced("hierarchical");
  on_ranks(4, [](Communicator& c) {
    c.set_hosts({0, 0, 1, 1});
    at::Tensor tensor = at::full({8}, c.rank() == 2 ? std::nan("") : 1.0);
    c.all_reduce(tensor, Purpose::kGradient, Reduction::average_of_sums(8, ReduceType::kOwn))
        .wait();
    EXPECT_EQ(c.not_finite().take(), std::vector<bool>(4, false));
  });
}

TEST(HierarchicalTensors, AreReleasedWhenWaitReturns) {
  const BetweenHosts forced("hierarchical");
  on_ranks(4, [](Communicator& c) {
    c.set_hosts({0, 0, 1, 1});
    const at::Tensor whole = at::ones({1 << 16}), piece = at::ones({1 << 14});
    const auto expect_released = [&](Work work, const char* operation) {
      work.wait();
      EXPECT_EQ(whole.storage().use_count(), 1U) << operation;
      EXPECT_EQ(piece.storage().use_count(), 1U) << operation;
    };
    expect_released(c.all_gather(whole, piece, Purpose::kParameter), "all_gather");
    expect_released(c.broadcast(whole, 1, Purpose::kParameter), "broadcast");
    expect_released(c.reduce(whole, 2, Purpose::kGradient), "reduce");
    expect_released(c.reduce_scatter(piece, whole, Purpose::kGradient), "reduce_scatter");
    expect_released(c.all_reduce(whole, Purpose::kGradient), "all_reduce");
  });
}

// Each rank overwrites what it passed in at once, while others may be late.
TEST(HierarchicalTensors, MayBeOverwrittenWhenWaitReturns) {
  const BetweenHosts forced("hierarchical");
  on_ranks(4, [](Communicator& c) {
    c.set_hosts({0, 0, 1, 1});
    constexpr std::int64_t kElements = 1 << 19;
    for (int late = 0; late < 8; ++late) {
      const at::Tensor whole = at::full({4 * kElements}, c.rank() + 1.0);
      const at::Tensor piece = at::empty({kElements});
      // Time in which the others would return if they did not wait for it.
      if (c.rank() == late % 4) std::this_thread::sleep_for(std::chrono::milliseconds(20));
      c.reduce_scatter(piece, whole, Purpose::kGradient, ReduceOp::kSum).wait();
      whole.fill_(std::nan(""));
      EXPECT_TRUE(at::equal(piece, at::full({kElements}, 10.0))) << "reduce_scatter " << late;
      piece.fill_(c.rank());
      c.all_gather(whole, piece, Purpose::kParameter).wait();
      piece.fill_(std::nan(""));
      const at::Tensor gathered = whole.clone();
      c.broadcast(whole, late % 4, Purpose::kParameter).wait();
      whole.fill_(std::nan(""));
      EXPECT_TRUE(at::equal(gathered, at::arange(4).repeat_interleave(kElements).to(at::kFloat)))
          << "all_gather " << late;
    }
  });
}

TEST(HierarchicalTensors, AreNotUsedAfterWaitHasThrown) {
  const BetweenHosts forced("hierarchical");
  on_ranks(4, [](Communicator& c) {
    c.set_hosts({0, 0, 1, 1});
    const at::Tensor tensor = at::ones({1 << 16});
    testing::expect_error(
        [&] {
          c.rank() == 0 ? c.broadcast(tensor, 1, Purpose::kParameter).wait()
                        : c.all_reduce(tensor, Purpose::kParameter).wait();
        },
        {"all ranks must call the same functions in the same order"});
    EXPECT_EQ(tensor.storage().use_count(), 1U);
  });
}

}  // namespace
}  // namespace zero::dist
