#include "memory_timeline.hpp"

#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

namespace zero::plots {
namespace {

TEST(Timeline, HasASampleForEveryLargeChangeAndTheMarks) {
  start_timeline(/*resolution=*/1000);
  mark("begin");
  {
    const at::Tensor large = at::empty({1000});
    const at::Tensor small = at::empty({10});
  }
  mark("end");
  const Timeline timeline = stop_timeline();
  EXPECT_EQ(timeline.samples.size(), 4U);  // the start, the large one, its end, the stop
  ASSERT_EQ(timeline.marks.size(), 2U);
  EXPECT_EQ(timeline.marks[0].label, "begin");
  mark("after the end");
  EXPECT_TRUE(stop_timeline().marks.empty());
}

}  // namespace
}  // namespace zero::plots
