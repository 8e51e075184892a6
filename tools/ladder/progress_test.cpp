#include "progress.hpp"

#include <gtest/gtest.h>
#include <stdio.h>
#include <stdlib.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>

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
  Progress progress("ddp", 0, steps, memory.stream(), /*to_terminal=*/false);
  for (std::int64_t i = 0; i < steps; ++i) progress.step("loss 1");
  return memory.text();
}

TEST(Progress, WritesPlainLinesIfThereIsNoTerminal) {
  Memory memory;
  {
    Progress progress("zero1", 0, 2, memory.stream(), /*to_terminal=*/false);
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
  Memory lines, terminal;
  {
    Progress progress("zero1", /*done=*/990, 1000, lines.stream(), /*to_terminal=*/false);
    for (int i = 0; i < 10; ++i) progress.step("loss 2");
    Progress drawn("zero1", /*done=*/2, 6, terminal.stream(), /*to_terminal=*/true);
    drawn.step("loss 3");
  }
  const std::string text = lines.text();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 10) << "a line at every tenth of this run";
  EXPECT_TRUE(text.starts_with("zero1  991/1000  loss 2\nzero1  992/1000  loss 2\n")) << text;
  EXPECT_NE(terminal.text().find("zero1  3/6  loss 3  left 00:00:0"), std::string::npos);
}

TEST(Progress, DrawsAllStepsInOneLineOfATerminal) {
  Memory memory;
  {
    Progress progress("zero3", 0, 4, memory.stream(), /*to_terminal=*/true);
    for (int i = 0; i < 4; ++i) progress.step("loss 1.5");
  }
  const std::string text = memory.text();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\r'), 4);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1);
  EXPECT_TRUE(text.starts_with("\r\x1b[?7lzero3  1/4  loss 1.5  left 00:00:0")) << text;
  EXPECT_TRUE(text.ends_with("zero3  4/4  loss 1.5  left 00:00:00\x1b[K\x1b[?7h\n")) << text;
}

TEST(Progress, SaysHowMuchTimeIsLeft) {
  Memory memory;
  Progress progress("ddp", 0, 10000, memory.stream(), /*to_terminal=*/true);
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  progress.step("loss 1");
  const std::string text = memory.text();
  EXPECT_EQ(text.find("left 00:00:0"), std::string::npos) << text;  // at least 2 ms x 9999
}

TEST(Progress, EndsAnOpenLineSoThatAnErrorHasItsOwn) {
  Memory memory;
  { Progress("ddp", 0, 10, memory.stream(), /*to_terminal=*/true).step("loss 1"); }
  EXPECT_TRUE(memory.text().ends_with("\n"));
}

TEST(Progress, StaysSilentBeforeTheFirstStepAndWithoutALabel) {
  Memory memory;
  {
    Progress unused("ddp", 0, 5, memory.stream(), /*to_terminal=*/true);
    Progress nameless("", 0, 1, memory.stream(), /*to_terminal=*/true);
    nameless.step("loss 1");
  }
  EXPECT_EQ(memory.text(), "");
}

}  // namespace
}  // namespace zero::ladder
