// When HSDP and the parts of ZeRO++ pay; figures.csv has what they hold and send.
#include "hosts.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include "report.hpp"

namespace zero::plan {
namespace {

Request request_on(std::int64_t hosts, std::int64_t ranks_per_host) {
  Request request;
  request.model = model_of_size(kBillion, 10);
  request.model.root = 100'000'000;
  request.policy = fp32();
  request.world_size = hosts * ranks_per_host;
  request.hosts.ranks_per_host = ranks_per_host;
  return request;
}

TEST(Hosts, AtTheRatioFromWhichAWayPaysItTakesTheTimeOfZero3) {
  for (const auto& [hosts, ranks] : {std::pair{2, 2}, {3, 2}, {4, 8}, {64, 8}}) {
    Request request = request_on(hosts, ranks);
    const std::vector<HostPlan> ways = make_plan(request).hosts;
    for (std::size_t i = 0; i < ways.size(); ++i) {
      SCOPED_TRACE(ways[i].name);
      EXPECT_EQ(ways[i].pays_from.has_value(), ways[i].name != "ZeRO-3");
      // What saves enough inside a host pays at any ratio.
      if (ways[i].pays_from.value_or(0) == 0) continue;
      const auto gained = [&](double ratio) {
        request.hosts.bandwidth = request.machine.bandwidth / ratio;
        const std::vector<HostPlan> plans = make_plan(request).hosts;
        return plans.front().seconds - plans[i].seconds;
      };
      EXPECT_LT(gained(0.999 * *ways[i].pays_from), 0);
      EXPECT_GT(gained(1.001 * *ways[i].pays_from), 0);
      EXPECT_GT(gained(10 * *ways[i].pays_from), 0);
    }
  }
}

TEST(Hosts, APhaseTakesTheLongerOfTwoLinksAndQuantizes) {
  Request request;
  request.machine.bandwidth = 6;
  request.hosts.quantize_bandwidth = 7;
  EXPECT_DOUBLE_EQ(phases_seconds({{12, 5, 0}, {12, 50, 7}}, request, 5), 2 + 10 + 1);
}

TEST(Hosts, AreInTheTable) {
  const Plan plan = make_plan(request_on(2, 2));
  const HostPlan& hpz = plan.hosts[2];
  const auto gb = [](double bytes) { return in(bytes, Unit::kGB); };
  EXPECT_THAT(to_text(plan),
              ::testing::AllOf(::testing::HasSubstr("2 hosts of 2 ranks"),
                               ::testing::ContainsRegex("ZeRO-3 .* -  +-\n"),
                               ::testing::ContainsRegex(fmt::format(
                                   "hpZ +{} +{} +{} ", gb(static_cast<double>(hpz.states.total())),
                                   gb(hpz.sum().inside), gb(hpz.leaves)))));
}

}  // namespace
}  // namespace zero::plan
