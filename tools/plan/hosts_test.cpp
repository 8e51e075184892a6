// Hosts with slow links between them, against the tables of 07_zero_plus_plus/README.md, by hand.
#include "hosts.hpp"

#include <gmock/gmock.h>

#include <tests/support/error_of.hpp>

#include "report.hpp"

namespace zero::plan {
namespace {

using ::testing::HasSubstr;

constexpr double kScale = 4.0 / 2048;         // bytes a parameter
constexpr double kGradientScale = 4.0 / 256;  // bytes an element of a gradient

// V = 4 GB, of which the root is `root` elements; sent as this library does.
Request request_on(std::int64_t hosts, std::int64_t ranks_per_host, std::int64_t root = 0) {
  Request request;
  request.model = model_of_size(kBillion, 10);
  request.model.root = root;
  request.policy = fp32();
  request.world_size = hosts * ranks_per_host;
  request.hosts.ranks_per_host = ranks_per_host;
  request.hosts.sending = Sending::kDirect;
  return request;
}

HostPlan plan_named(const Request& request, const std::string& name) {
  for (const HostPlan& plan : make_plan(request).hosts) {
    if (plan.name == name) return plan;
  }
  throw Error("no such row: " + name);
}

struct Row {
  const char* name;
  double states;         // in V
  double leaves_a_host;  // in V, without scales
  // Elements of which scales leave a host, in those of the model.
  double parameters = 0, gradients = 0;
};

TEST(Hosts, TwoOfTwoRanksHoldAndSendWhatTheLessonSays) {
  constexpr double kG = 0.25;
  const Request request = request_on(2, 2, kBillion / 4);
  const double v = 4e9;
  for (const Row& row : {Row{"ZeRO-3", 1, 3 - kG},
                         {"HSDP", 2, 1},
                         {"hpZ", 1.5, 2},
                         {"qwZ", 1, 1.5 - kG / 4, 2 - kG},
                         {"qgZ", 1, 2.0625 - kG, 0, 0.5},
                         {"ZeRO++", 1.125, 0.3125, 1, 0.5}}) {
    SCOPED_TRACE(row.name);
    const HostPlan plan = plan_named(request, row.name);
    const bool packed_shard = plan.name == "ZeRO++";
    EXPECT_NEAR(static_cast<double>(plan.states.total()),
                row.states * v + (packed_shard ? 0.5e9 * kScale : 0), 1);
    EXPECT_NEAR(
        2 * plan.sum().between,
        row.leaves_a_host * v + 1e9 * (row.parameters * kScale + row.gradients * kGradientScale),
        1);
  }
  EXPECT_NEAR(plan_named(request, "ZeRO-3").sum().inside, (3 - kG) * v / 4, 1);
  EXPECT_NEAR(plan_named(request, "hpZ").sum().inside, v / 4 + (1 - kG) * v / 2 + v / 4, 1);
  EXPECT_NEAR(plan_named(request, "HSDP").sum().inside, (3 - kG) * v / 2, 1);
  EXPECT_NEAR(plan_named(request, "qgZ").sum().inside,
              (2 - kG) * v / 4 + (0.5 + kGradientScale) * 1e9 / 2, 1);
}

// With links inside of 1 byte a second: ZeRO-3's second gather takes max(V/4, x V/2) at a ratio of
// x, hpZ's V/2.
TEST(Hosts, HpzPaysWhereALinkBetweenHostsIsSlowerThanOneInside) {
  EXPECT_NEAR(*plan_named(request_on(2, 2), "hpZ").pays_from, 1, 1e-6);
  // (S-1)/S against x (N-S)/N
  EXPECT_NEAR(*plan_named(request_on(64, 8), "hpZ").pays_from, 7.0 / 8 * 64 / 63, 1e-6);
}

// Where a link between hosts decides, two gathers save the time of 3/8 of V each and cost that of
// quantizing a quarter of V and dequantizing V.
TEST(Hosts, QwzPaysWhereALinkIsSlowerThanQuantizing) {
  Request request = request_on(2, 2);
  request.hosts.quantize_bandwidth = request.machine.bandwidth / 10;
  const double saved = 0.5 * (4 - 1 - kScale), costs = 4 * 1.25 * 10;
  EXPECT_NEAR(*plan_named(request, "qwZ").pays_from, costs / saved, 1e-6);
  request.hosts.quantize_bandwidth = 1;  // a byte a second
  EXPECT_FALSE(plan_named(request, "qwZ").pays_from);
  EXPECT_FALSE(plan_named(request, "ZeRO-3").pays_from);
}

TEST(Hosts, AtTheRatioFromWhichAWayPaysItTakesTheTimeOfZero3) {
  for (const auto& [hosts, ranks] : {std::pair{2, 2}, {3, 2}, {4, 8}, {64, 8}}) {
    Request request = request_on(hosts, ranks, 100'000'000);
    for (const HostPlan& plan : make_plan(request).hosts) {
      SCOPED_TRACE(plan.name);
      EXPECT_EQ(plan.pays_from.has_value(), plan.name != "ZeRO-3");
      // qwZ saves enough inside a host of 8 of 32 ranks.
      if (plan.pays_from.value_or(0) == 0) continue;
      const auto gained = [&](double ratio) {
        request.hosts.bandwidth = request.machine.bandwidth / ratio;
        return plan_named(request, "ZeRO-3").seconds - plan_named(request, plan.name).seconds;
      };
      EXPECT_LT(gained(0.999 * *plan.pays_from), 0);
      EXPECT_GT(gained(1.001 * *plan.pays_from), 0);
      EXPECT_GT(gained(10 * *plan.pays_from), 0);
    }
  }
}

// In a ring ZeRO-3's second gather takes max(3V/8, x 3V/8) and hpZ's V/2 at a ratio of x.
TEST(Hosts, InARingHpzPaysWhereTheLinkOfAHostIsSlowerThanOneInside) {
  Request request = request_on(2, 2);
  request.hosts.sending = Sending::kRing;
  const HostPlan zero3 = plan_named(request, "ZeRO-3");
  EXPECT_DOUBLE_EQ(zero3.sum().inside, 3 * 3 * 4e9 / 8);
  EXPECT_DOUBLE_EQ(zero3.sum().between, 3 * 3 * 4e9 / 8);
  EXPECT_DOUBLE_EQ(zero3.leaves_by_ring, 3 * 3 * 4e9 / 4);
  EXPECT_DOUBLE_EQ(zero3.leaves_here, 3 * 4e9);
  EXPECT_NEAR(*plan_named(request, "hpZ").pays_from, 4 / 3.0, 1e-6);
}

TEST(Hosts, TheAdviceIsWhatTakesLeastTimeAndWhatDoesWithoutRounding) {
  Request request = request_on(8, 8);
  const auto advice = [&] { return to_text(make_plan(request)); };
  request.hosts.bandwidth = 1e9;
  EXPECT_THAT(advice(), HasSubstr("Least time: ZeRO++ ("));
  EXPECT_THAT(advice(), HasSubstr("rounds nothing: HSDP ("));
  request.hosts.sending = Sending::kRing;
  request.hosts.bandwidth = 10e9;
  EXPECT_THAT(advice(), HasSubstr("rounds nothing: hpZ ("));
  request.hosts.quantize_bandwidth = 1e9;
  EXPECT_THAT(advice(), HasSubstr("Least time: hpZ ("));
}

TEST(Hosts, APhaseTakesTheLongerOfTwoLinksAndQuantizes) {
  Request request;
  request.machine.bandwidth = 6;
  request.hosts.quantize_bandwidth = 7;
  EXPECT_DOUBLE_EQ(phases_seconds({{12, 5, 0}, {12, 50, 7}}, request, 5), 2 + 10 + 1);
}

TEST(Hosts, AreInTheTable) {
  const Plan plan = make_plan(request_on(2, 2));
  EXPECT_THAT(to_text(plan), HasSubstr("2 hosts of 2 ranks"));
  const HostPlan& hpz = plan.hosts[2];
  EXPECT_DOUBLE_EQ(hpz.leaves_here, 2 * 4e9);
  EXPECT_THAT(to_text(plan),
              ::testing::ContainsRegex(fmt::format(
                  "hpZ +{} +{} +{} +{} ", in(static_cast<double>(hpz.states.total()), Unit::kGB),
                  in(hpz.sum().inside, Unit::kGB), in(hpz.leaves_by_ring, Unit::kGB),
                  in(hpz.leaves_here, Unit::kGB))));
  EXPECT_THAT(to_text(plan), ::testing::ContainsRegex("ZeRO-3 .* -  +-\n"));
}

TEST(Hosts, ThatDoNotFillTheRanksAreRefused) {
  const auto refused = [](Request request, const std::string& words) {
    testing::expect_error([&] { make_plan(request); }, {words});
  };
  Request request = request_on(2, 3);
  request.world_size = 8;
  refused(request, "--ranks-per-host 3: --world-size 8 is not two or more such hosts");
  request.hosts.ranks_per_host = 8;
  refused(request, "--ranks-per-host 8: --world-size 8 is not two or more such hosts");
}

}  // namespace
}  // namespace zero::plan
