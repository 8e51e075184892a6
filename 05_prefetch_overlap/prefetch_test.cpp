#include "prefetch.hpp"

#include <gmock/gmock.h>

namespace zero {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Units = std::vector<std::size_t>;

// Runs a pass over `units`; what is to be gathered ahead at each of them.
std::vector<Units> run(Prefetch& prefetch, const Units& units) {
  prefetch.begin();
  std::vector<Units> ahead;
  for (const std::size_t unit : units) ahead.push_back(prefetch.use(unit));
  return ahead;
}

TEST(Prefetch, WatchesThePassThatIsKeptAndSaysNothingMeanwhile) {
  Prefetch prefetch(2);
  EXPECT_THAT(run(prefetch, {0, 1, 2}), ElementsAre(IsEmpty(), IsEmpty(), IsEmpty()));
  EXPECT_FALSE(prefetch.known());
  // An evaluation before the first step: its order is not kept.
  EXPECT_THAT(run(prefetch, {0, 2}), ElementsAre(IsEmpty(), IsEmpty()));
  EXPECT_TRUE(prefetch.is_new());
  prefetch.keep(prefetch.seen());
  EXPECT_TRUE(prefetch.known());
  EXPECT_FALSE(prefetch.is_new());
  EXPECT_THAT(run(prefetch, {0, 2}), ElementsAre(Units{2}, IsEmpty()));
}

TEST(Prefetch, KnowsTheLastUnitOfAPass) {
  Prefetch prefetch(1);
  run(prefetch, {0, 1, 2});
  EXPECT_FALSE(prefetch.at_end());  // another may follow
  prefetch.keep(prefetch.seen());
  run(prefetch, {0, 1});
  EXPECT_FALSE(prefetch.at_end());
  prefetch.use(2);
  EXPECT_TRUE(prefetch.at_end());
  run(prefetch, {0, 2, 1});
  EXPECT_FALSE(prefetch.at_end());  // who knows what such a pass still does
}

TEST(Prefetch, NamesTheUnitsThatFollow) {
  Prefetch prefetch(2);
  run(prefetch, {0, 1, 2, 3});
  prefetch.keep(prefetch.seen());
  EXPECT_THAT(run(prefetch, {0, 1, 2, 3}),
              ElementsAre(Units{1, 2}, Units{2, 3}, Units{3}, Units{}));
  EXPECT_FALSE(prefetch.lost());
  Prefetch on_demand(0);
  on_demand.keep({0, 1});
  EXPECT_THAT(run(on_demand, {0, 1}), ElementsAre(Units{}, Units{}));
}

TEST(Prefetch, KnowsAUnitThatIsUsedTwice) {
  Prefetch prefetch(1);
  run(prefetch, {0, 1, 0, 2});
  prefetch.keep(prefetch.seen());
  EXPECT_THAT(run(prefetch, {0, 1, 0, 2}), ElementsAre(Units{1}, Units{0}, Units{2}, Units{}));
}

TEST(Prefetch, SaysNothingMoreInAPassThatRunsOtherwiseAndRecoversInTheNext) {
  Prefetch prefetch(1);
  run(prefetch, {0, 1, 2});
  prefetch.keep(prefetch.seen());
  EXPECT_THAT(run(prefetch, {0, 2, 1}), ElementsAre(Units{1}, Units{}, Units{}));
  EXPECT_TRUE(prefetch.lost());
  EXPECT_THAT(run(prefetch, {0, 1, 2, 2}), ElementsAre(Units{1}, Units{2}, Units{}, Units{}));
  EXPECT_TRUE(prefetch.lost());
  run(prefetch, {0, 1});  // a pass that ends early is none that ran otherwise
  EXPECT_FALSE(prefetch.lost());
  EXPECT_TRUE(prefetch.is_new());
  prefetch.keep(prefetch.seen());  // the next one will not be asked for unit 2 in vain
  EXPECT_THAT(run(prefetch, {0, 1}), ElementsAre(Units{1}, Units{}));
}

}  // namespace
}  // namespace zero
