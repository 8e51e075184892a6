// The schedules of a pipeline, as data: nothing here runs a model.

#include "pipeline_schedule.hpp"

#include <gmock/gmock.h>

#include <algorithm>

#include <tests/support/error_of.hpp>
#include <tests/support/pipeline_clock.hpp>

namespace zero::testing {
namespace {

using Kind = PipelineAction::Kind;
using ::testing::HasSubstr;

using enum PipelineSchedule;

// Calls `check(schedule, stages, micro_batches)` for small and odd numbers.
template <typename Check>
void for_all(const Check& check) {
  for (const PipelineSchedule schedule : {kGPipe, kOneForwardOneBackward}) {
    for (const int stages : {1, 2, 3, 4, 7}) {
      for (const int micro_batches : {1, 2, 3, 4, 5, 8, 13}) {
        SCOPED_TRACE(std::string(name(schedule)) + ", " + std::to_string(stages) + " stages, " +
                     std::to_string(micro_batches) + " micro-batches");
        check(schedule, stages, micro_batches);
      }
    }
  }
}

std::vector<int> micro_batches_of(const StageActions& actions, Kind kind) {
  std::vector<int> found;
  for (const PipelineAction& a : actions) {
    if (a.kind == kind) found.push_back(a.micro_batch);
  }
  return found;
}

std::string words(const StageActions& actions) {
  std::string all;
  for (const PipelineAction& a : actions) all += (all.empty() ? "" : " ") + text(a);
  return all;
}

TEST(PipelineSchedule, EveryStageRunsEachMicroBatchOnceForwardAndOnceBackwardInOrder) {
  for_all([](PipelineSchedule schedule, int stages, int micro_batches) {
    std::vector<int> expected;
    for (int m = 0; m < micro_batches; ++m) expected.push_back(m);
    const auto all = all_actions(schedule, stages, micro_batches);
    ASSERT_EQ(static_cast<int>(all.size()), stages);
    for (int s = 0; s < stages; ++s) {
      const StageActions& actions = all[static_cast<std::size_t>(s)];
      EXPECT_EQ(micro_batches_of(actions, Kind::kForward), expected);
      EXPECT_EQ(micro_batches_of(actions, Kind::kBackward), expected);
    }
  });
}

TEST(PipelineSchedule, EndsOnAClockWithEveryMessageReceivedInTheOrderOfItsSending) {
  for_all([](PipelineSchedule schedule, int stages, int micro_batches) {
    EXPECT_NO_THROW(in_time(all_actions(schedule, stages, micro_batches)));
  });
}

TEST(PipelineSchedule, AnActionBeginsAfterTheOneWhoseResultItNeeds) {
  for_all([](PipelineSchedule schedule, int stages, int micro_batches) {
    const auto timed = in_time(all_actions(schedule, stages, micro_batches), 1, 2);
    const auto find = [&](int stage, Kind kind, int m) {
      const auto& of_stage = timed[static_cast<std::size_t>(stage)];
      return *std::find_if(of_stage.begin(), of_stage.end(), [&](const TimedAction& a) {
        return a.action.kind == kind && a.action.micro_batch == m;
      });
    };
    for (int m = 0; m < micro_batches; ++m) {
      for (int s = 0; s < stages; ++s) {
        const TimedAction forward = find(s, Kind::kForward, m);
        const TimedAction backward = find(s, Kind::kBackward, m);
        EXPECT_GE(backward.begin, forward.end);
        if (s == stages - 1) continue;
        EXPECT_GE(find(s + 1, Kind::kForward, m).begin, forward.end);
        EXPECT_GE(backward.begin, find(s + 1, Kind::kBackward, m).end);
      }
    }
  });
}

TEST(PipelineSchedule, TheBubbleIsThatOfTheFormula) {
  for_all([](PipelineSchedule schedule, int stages, int micro_batches) {
    const double formula =
        static_cast<double>(stages - 1) / static_cast<double>(micro_batches + stages - 1);
    const auto actions = all_actions(schedule, stages, micro_batches);
    EXPECT_DOUBLE_EQ(bubble_fraction(in_time(actions)), formula);
    EXPECT_DOUBLE_EQ(bubble_fraction(in_time(actions, 1, 2)), formula) << "backward takes twice";
    EXPECT_DOUBLE_EQ(bubble_fraction(in_time(actions, 1, 3)), formula) << "with recomputation";
  });
}

TEST(PipelineSchedule, OneForwardOneBackwardHoldsTheMicroBatchesOfItsPlaceGPipeAll) {
  for_all([](PipelineSchedule schedule, int stages, int micro_batches) {
    for (int s = 0; s < stages; ++s) {
      EXPECT_EQ(most_in_flight(stage_actions(schedule, s, stages, micro_batches)),
                schedule == kGPipe ? micro_batches : std::min(stages - s, micro_batches));
    }
  });
}

TEST(PipelineSchedule, IsThePublishedOne) {
  EXPECT_EQ(words(stage_actions(kGPipe, 1, 3, 3)), "F0 F1 F2 B0 B1 B2");
  EXPECT_EQ(words(stage_actions(kOneForwardOneBackward, 0, 3, 4)), "F0 F1 F2 B0 F3 B1 B2 B3");
  EXPECT_EQ(words(stage_actions(kOneForwardOneBackward, 1, 3, 4)), "F0 F1 B0 F2 B1 F3 B2 B3");
  EXPECT_EQ(words(stage_actions(kOneForwardOneBackward, 2, 3, 4)), "F0 B0 F1 B1 F2 B2 F3 B3");
  EXPECT_EQ(text(in_time(all_actions(kOneForwardOneBackward, 2, 3))),
            "slot       0   1   2   3   4   5   6   7\n"
            "stage 0   F0  F1   .  B0  F2  B1   .  B2\n"
            "stage 1    .  F0  B0  F1  B1  F2  B2   .\n");
}

TEST(PipelineSchedule, AScheduleThatCannotRunIsRefused) {
  auto waits = all_actions(kOneForwardOneBackward, 2, 2);
  std::swap(waits[0][0], waits[0].back());  // backward before forward
  EXPECT_THAT(error_of([&] { in_time(waits); }),
              HasSubstr("wait for each other; stage 0 in B1 for stage 1; stage 1 in F0"));

  auto skips = all_actions(kOneForwardOneBackward, 2, 2);
  std::erase_if(skips[1], [](const PipelineAction& a) {
    return a.kind == Kind::kForward && a.micro_batch == 0;
  });
  EXPECT_THAT(error_of([&] { in_time(skips); }),
              HasSubstr("stage 1 receives for F1 from stage 0, whose next message is for F0"));

  auto deaf = all_actions(kOneForwardOneBackward, 2, 2);
  deaf[0].pop_back();
  EXPECT_THAT(error_of([&] { in_time(deaf); }),
              HasSubstr("stage 0 never receives what stage 1 sends for B1"));

  EXPECT_THAT(error_of([] { stage_actions(kGPipe, 2, 2, 1); }), HasSubstr("stage 2 of 2"));
  EXPECT_THAT(error_of([] { stage_actions(kGPipe, 0, 1, 0); }), HasSubstr("0 micro-batches"));
}

}  // namespace
}  // namespace zero::testing
