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
  BackwardSchedule turns(family());
  for (std::size_t u = 0; u < 5; ++u) turns.used(u);
  return turns;
}

TEST(BackwardSchedule, EndWhenAUnitBeginsThatIsNotWithin) {
  BackwardSchedule turns = used_once();
  EXPECT_THAT(turns.leave_for(0), IsEmpty());
  turns.enter(0);
  EXPECT_THAT(turns.leave_for(4), IsEmpty());
  turns.enter(4);
  EXPECT_TRUE(turns.open(4));
  EXPECT_THAT(turns.leave_for(1), ElementsAre(4));
  EXPECT_FALSE(turns.open(4));
  turns.enter(1);
  EXPECT_THAT(turns.leave_for(3), IsEmpty());  // within 1
  turns.enter(3);
  EXPECT_TRUE(turns.open(3));
  EXPECT_THAT(turns.leave_for(2), ElementsAre(3));
  turns.enter(2);
  turns.end();
  EXPECT_FALSE(turns.open(2));
  // All uses are over: the next step begins like the first.
  for (const std::size_t u : {0, 4, 1}) turns.used(u);
  turns.enter(0);
  turns.enter(4);
  EXPECT_TRUE(turns.open(4));
}

TEST(BackwardSchedule, AUnitAroundOthersIsNeverOpenAndEndsAfterThem) {
  BackwardSchedule turns = used_once();
  turns.enter(0);
  EXPECT_FALSE(turns.open(0));
  turns.leave_for(1);
  turns.enter(1);
  EXPECT_FALSE(turns.open(1));
  turns.leave_for(2);
  turns.enter(2);
  EXPECT_THAT(turns.leave_for(4), ElementsAre(2, 1));
}

TEST(BackwardSchedule, OfAUnitThatIsUsedTwiceIsItsLastUse) {
  BackwardSchedule turns = used_once();
  turns.used(4);
  turns.enter(0);
  turns.enter(4);
  EXPECT_FALSE(turns.open(4));
  EXPECT_THAT(turns.leave_for(2), IsEmpty());
  turns.enter(2);
  EXPECT_THAT(turns.leave_for(4), ElementsAre(2));
  turns.enter(4);
  EXPECT_TRUE(turns.open(4));
  EXPECT_THAT(turns.leave_for(2), ElementsAre(4));
}

TEST(BackwardSchedule, AUnitThatIsUsedTwiceInARowHasItsTurnAtTheSecond) {
  BackwardSchedule turns = used_once();
  turns.used(4);
  turns.enter(0);
  turns.leave_for(4);
  turns.enter(4);
  EXPECT_FALSE(turns.open(4));
  EXPECT_THAT(turns.leave_for(4), IsEmpty());  // over is only one of two uses
  turns.enter(4);
  EXPECT_TRUE(turns.open(4));
  EXPECT_THAT(turns.leave_for(2), ElementsAre(4));
}

// A part under activation checkpointing runs forward again inside backward, and its gradients are
// told of when its own backward is over.
TEST(BackwardSchedule, NothingIsOverInsideACheckpointedPart) {
  BackwardSchedule turns = used_once();
  turns.enter(0);
  EXPECT_THAT(turns.leave_for(4), IsEmpty());  // runs forward again
  {
    const nn::SuppressGradientHooks silent;
    EXPECT_THAT(turns.leave_for(4), IsEmpty());
    turns.enter(4);
    EXPECT_THAT(turns.leave_for(2), IsEmpty());
    turns.enter(2);
  }
  EXPECT_FALSE(turns.open(4));
  EXPECT_TRUE(turns.open(2));
  EXPECT_THAT(turns.leave_for(3), ElementsAre(2, 4));
}

TEST(BackwardSchedule, ForgetForwardsThatNoBackwardFollowed) {
  BackwardSchedule turns = used_once();
  for (std::size_t u = 0; u < 5; ++u) turns.used(u);
  turns.enter(0);
  turns.enter(4);
  EXPECT_FALSE(turns.open(4));  // as if it came twice
  turns.forget();
  turns.used(4);
  turns.enter(0);
  turns.enter(4);
  EXPECT_TRUE(turns.open(4));
}

}  // namespace
}  // namespace zero::train
