#include <gmock/gmock.h>

#include <functional>
#include <limits>

#include <zero/base/error.hpp>
#include <zero/train/loss_scale.hpp>

namespace zero::train {
namespace {

using ::testing::HasSubstr;

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(LossScale, BeginsAtTwoToTheSixteenAndGrowsAfterTwoThousandSteps) {
  LossScale scale;
  EXPECT_EQ(scale.value(), 65536.0);
  for (int step = 0; step < 1999; ++step) scale.note_good_step();
  EXPECT_EQ(scale.value(), 65536.0);
  scale.note_good_step();
  EXPECT_EQ(scale.value(), 131072.0);
  EXPECT_EQ(scale.state().good_steps, 0);
}

TEST(LossScale, AnOverflowHalvesItAndBeginsTheCountAnew) {
  LossScale scale({.initial = 8, .growth_steps = 3});
  scale.note_good_step();
  scale.note_good_step();
  EXPECT_TRUE(scale.note_overflow());
  EXPECT_EQ(scale.value(), 4.0);
  scale.note_good_step();
  scale.note_good_step();
  EXPECT_EQ(scale.value(), 4.0) << "steps before the overflow were counted";
  scale.note_good_step();
  EXPECT_EQ(scale.value(), 8.0);
}

TEST(LossScale, DoesNotFallBelowOneNorGrowWithoutEnd) {
  LossScale scale({.initial = 2, .growth_steps = 1});
  EXPECT_TRUE(scale.note_overflow());
  EXPECT_FALSE(scale.note_overflow());
  EXPECT_EQ(scale.value(), 1.0);
  for (int step = 0; step < 1000; ++step) scale.note_good_step();
  EXPECT_EQ(scale.value(), 0x1p100);
}

TEST(LossScale, GoesOnFromItsState) {
  LossScale first({.initial = 16, .growth_steps = 4});
  first.note_overflow();
  first.note_good_step();
  LossScale second({.initial = 65536, .growth_steps = 4});
  second.set_state(first.state());
  for (int step = 0; step < 9; ++step) {
    first.note_good_step();
    second.note_good_step();
    EXPECT_EQ(first.state(), second.state());
  }
  EXPECT_EQ(second.value(), 32.0);
}

TEST(LossScale, GoesOnFromAnyNumberOfGoodSteps) {
  LossScale scale({.initial = 2, .growth_steps = 3});
  scale.set_state({2, std::numeric_limits<std::int64_t>::max()});
  scale.note_good_step();
  EXPECT_EQ(scale.value(), 4.0);
  EXPECT_EQ(scale.state().good_steps, 0);
}

TEST(LossScale, SurvivesItsText) {
  LossScale first({.initial = 0x1p40, .growth_steps = 4});
  first.note_good_step();
  LossScale second;
  second.set_from_text(first.to_text());
  EXPECT_EQ(second.state(), first.state());
  for (const std::string wrong : {"", "2", "2 x", "2 1 0", "3 0", "two 0"}) {
    EXPECT_NE(message_of([&] { second.set_from_text(wrong); }), "") << wrong;
    EXPECT_EQ(second.state(), first.state()) << wrong;
  }
}

TEST(LossScale, RefusesWhatIsNoScale) {
  for (const double wrong :
       {0.0, -2.0, 3.0, 0.5, 65535.0, 0x1p101, std::numeric_limits<double>::infinity()}) {
    EXPECT_THAT(message_of([&] { LossScale({.initial = wrong}); }), HasSubstr("power of two"));
    EXPECT_THAT(message_of([&] { LossScale().set_state({wrong, 0}); }), HasSubstr("power of two"));
  }
  EXPECT_THAT(message_of([] { LossScale({.growth_steps = 0}); }), HasSubstr("1 or more"));
  EXPECT_THAT(message_of([] { LossScale().set_state({2, -1}); }), HasSubstr("0 or more"));
}

}  // namespace
}  // namespace zero::train
