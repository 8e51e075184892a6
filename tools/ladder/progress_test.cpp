#include "progress.hpp"

#include <gtest/gtest.h>
#include <stdio.h>
#include <stdlib.h>

#include <algorithm>
#include <string>
#include <string_view>

namespace zero::ladder {
namespace {

// A stream that keeps what is written to it.
class Memory {
 public:
  Memory() : stream_(::open_memstream(&data_, &size_)) {}
  ~Memory() {
    std::fclose(stream_);
    ::free(data_);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  std::FILE* stream() { return stream_; }
  std::string text() {
    std::fflush(stream_);
    return {data_, size_};
  }

 private:
  char* data_ = nullptr;
  std::size_t size_ = 0;
  std::FILE* stream_;
};

std::string plain_lines(std::int64_t steps) {
  Memory memory;
  Progress progress("ddp", 0, steps, memory.stream());
  for (std::int64_t i = 0; i < steps; ++i) progress.step("loss 1");
  return memory.text();
}

TEST(Progress, WritesPlainLinesWhereThereIsNoTerminal) {
  Memory memory;
  {
    Progress progress("zero1", 0, 2, memory.stream());
    progress.step("loss 10.801  step 6.02 s");
    progress.step("loss 10.713");
  }
  EXPECT_EQ(memory.text(),
            "zero1  1/2  loss 10.801  step 6.02 s\n"
            "zero1  2/2  loss 10.713\n");
}

TEST(Progress, WritesAtMostOnePlainLineATenth) {
  const std::string lines = plain_lines(1000);
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 10);
  EXPECT_TRUE(lines.starts_with("ddp  100/1000  loss 1\n")) << lines;
  EXPECT_TRUE(lines.ends_with("ddp  1000/1000  loss 1\n")) << lines;
  const std::string odd = plain_lines(17);
  EXPECT_LE(std::count(odd.begin(), odd.end(), '\n'), 10);
  EXPECT_TRUE(odd.ends_with("ddp  17/17  loss 1\n")) << odd;
}

TEST(Progress, CountsOnFromTheStepsOfAnEarlierRun) {
  Memory lines, bar;
  {
    Progress progress("zero1", /*done=*/4, 6, lines.stream());
    progress.step("loss 2");
    progress.step("loss 1");
    Progress drawn("zero1", /*done=*/2, 6, bar.stream(), /*bar=*/true);
    drawn.step("loss 3");
    Progress nothing_left("zero1", /*done=*/6, 6, lines.stream());
    nothing_left.step("loss 4");
  }
  EXPECT_EQ(lines.text(), "zero1  5/6  loss 2\nzero1  6/6  loss 1\n");
  EXPECT_TRUE(bar.text().starts_with("\rzero1  [############............]  3/6  loss 3  left 0:00"))
      << bar.text();
}

TEST(Progress, DrawsTheFirstAndTheLastStepInOneLine) {
  Memory memory;
  {
    Progress progress("zero3", 0, 4, memory.stream(), /*bar=*/true);
    for (int i = 0; i < 4; ++i) progress.step("loss 1.5");
  }
  const std::string text = memory.text();
  EXPECT_TRUE(text.starts_with("\rzero3  [######..................]  1/4  loss 1.5  left 0:00"))
      << text;
  EXPECT_TRUE(text.ends_with("\rzero3  [########################]  4/4  loss 1.5\x1b[K\n")) << text;
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1);
}

TEST(Progress, EndsAnOpenLineSoThatAnErrorHasItsOwn) {
  Memory memory;
  { Progress("ddp", 0, 10, memory.stream(), /*bar=*/true).step("loss 1"); }
  EXPECT_TRUE(memory.text().ends_with("\x1b[K\n"));
}

TEST(Progress, NeverWraps) {
  Memory memory;
  Progress progress("ddp", 0, 1, memory.stream(), /*bar=*/true);
  progress.step(std::string(500, 'x'));
  EXPECT_EQ(memory.text().size(), 119 + std::string_view("\r\x1b[K").size()) << memory.text();
}

TEST(Progress, StaysSilent) {
  Memory memory;
  {
    Progress nothing("ddp", 0, 0, memory.stream(), /*bar=*/true);
    nothing.step("loss 1");
    Progress unused("ddp", 0, 5, memory.stream(), /*bar=*/true);
  }
  EXPECT_EQ(memory.text(), "");
}

TEST(Progress, TakesMoreStepsThanAnnounced) {
  Memory memory;
  {
    Progress progress("ddp", 0, 1, memory.stream(), /*bar=*/true);
    progress.step("loss 2");
    progress.step("loss 1");
  }
  EXPECT_NE(memory.text().find("[########################]  2/1"), std::string::npos);
}

}  // namespace
}  // namespace zero::ladder
