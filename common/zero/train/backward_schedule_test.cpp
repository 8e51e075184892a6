#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <zero/train/backward_schedule.hpp>

namespace zero::train {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// The root, 1 and 4 in it, 2 and 3 in 1.
nn::ParameterList family() {
  nn::ParameterList list;
  list.units = {{nullptr, "", {}, 0},
                {nullptr, "a", {}, 0},
                {nullptr, "a.b", {}, 1},
                {nullptr, "a.c", {}, 1},
                {nullptr, "d", {}, 0}};
  return list;
}

BackwardSchedule used_once() {
  BackwardSchedule schedule(family());
  for (std::size_t u = 0; u < 5; ++u) schedule.used(u);
  return schedule;
}

TEST(BackwardSchedule, EndWhenAUnitBeginsThatIsNotWithin) {
  BackwardSchedule schedule = used_once();
  EXPECT_THAT(schedule.leave_for(0), IsEmpty());
  schedule.enter(0);
  EXPECT_THAT(schedule.leave_for(4), IsEmpty());
  schedule.enter(4);
  EXPECT_TRUE(schedule.open(4));
  EXPECT_THAT(schedule.leave_for(1), ElementsAre(4));
  EXPECT_FALSE(schedule.open(4));
  schedule.enter(1);
  EXPECT_THAT(schedule.leave_for(3), IsEmpty());  // within 1
  schedule.enter(3);
  EXPECT_TRUE(schedule.open(3));
  EXPECT_THAT(schedule.leave_for(2), ElementsAre(3));
  schedule.enter(2);
  schedule.end();
  EXPECT_FALSE(schedule.open(2));
  // All uses are over: the next step begins like the first.
  for (const std::size_t u : {0, 4, 1}) schedule.used(u);
  schedule.enter(0);
  schedule.enter(4);
  EXPECT_TRUE(schedule.open(4));
}

TEST(BackwardSchedule, AUnitAroundOthersIsNeverOpenAndEndsAfterThem) {
  BackwardSchedule schedule = used_once();
  schedule.enter(0);
  EXPECT_FALSE(schedule.open(0));
  schedule.leave_for(1);
  schedule.enter(1);
  EXPECT_FALSE(schedule.open(1));
  schedule.leave_for(2);
  schedule.enter(2);
  EXPECT_THAT(schedule.leave_for(4), ElementsAre(2, 1));
}

TEST(BackwardSchedule, OfAUnitThatIsUsedTwiceIsItsLastUse) {
  BackwardSchedule schedule = used_once();
  schedule.used(4);
  schedule.enter(0);
  schedule.enter(4);
  EXPECT_FALSE(schedule.open(4));
  EXPECT_THAT(schedule.leave_for(2), IsEmpty());
  schedule.enter(2);
  EXPECT_THAT(schedule.leave_for(4), ElementsAre(2));
  schedule.enter(4);
  EXPECT_TRUE(schedule.open(4));
  EXPECT_THAT(schedule.leave_for(2), ElementsAre(4));
}

TEST(BackwardSchedule, AUnitThatIsUsedTwiceInARowHasItsTurnAtTheSecond) {
  BackwardSchedule schedule = used_once();
  schedule.used(4);
  schedule.enter(0);
  schedule.leave_for(4);
  schedule.enter(4);
  EXPECT_FALSE(schedule.open(4));
  EXPECT_THAT(schedule.leave_for(4), IsEmpty());  // over is only one of two uses
  schedule.enter(4);
  EXPECT_TRUE(schedule.open(4));
  EXPECT_THAT(schedule.leave_for(2), ElementsAre(4));
}

// A part under activation checkpointing runs forward again inside backward, and its gradients are
// told of when its own backward is over.
TEST(BackwardSchedule, NothingIsOverInsideACheckpointedPart) {
  BackwardSchedule schedule = used_once();
  schedule.enter(0);
  EXPECT_THAT(schedule.leave_for(4), IsEmpty());  // runs forward again
  {
    const nn::SuppressGradientHooks silent;
    EXPECT_THAT(schedule.leave_for(4), IsEmpty());
    schedule.enter(4);
    EXPECT_THAT(schedule.leave_for(2), IsEmpty());
    schedule.enter(2);
  }
  EXPECT_FALSE(schedule.open(4));
  EXPECT_TRUE(schedule.open(2));
  EXPECT_THAT(schedule.leave_for(3), ElementsAre(2, 4));
}

TEST(BackwardSchedule, ForgetForwardsThatNoBackwardFollowed) {
  BackwardSchedule schedule = used_once();
  for (std::size_t u = 0; u < 5; ++u) schedule.used(u);
  schedule.enter(0);
  schedule.enter(4);
  EXPECT_FALSE(schedule.open(4));  // as if it came twice
  schedule.forget();
  schedule.used(4);
  schedule.enter(0);
  schedule.enter(4);
  EXPECT_TRUE(schedule.open(4));
}

}  // namespace
}  // namespace zero::train
