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

// What is written by `calls` steps after `done` of `steps`.
std::string written(const char* label, std::int64_t done, std::int64_t steps, int calls,
                    const std::string& said, bool to_terminal = false) {
  Memory memory;
  {
    Progress progress(label, done, steps, memory.stream(), to_terminal);
    for (int i = 0; i < calls; ++i) progress.step(said);
  }
  return memory.text();
}

void expect(const std::string& text, const std::string& begin, char mark, std::ptrdiff_t marks,
            const std::string& end) {
  EXPECT_TRUE(text.starts_with(begin)) << text;
  EXPECT_TRUE(text.ends_with(end)) << text;
  EXPECT_EQ(std::ranges::count(text, mark), marks) << text;
}

TEST(Progress, WritesAtMostOnePlainLineATenthIfThereIsNoTerminal) {
  EXPECT_EQ(written("zero1", 0, 2, 2, "loss 10.801"),
            "zero1  1/2  loss 10.801\nzero1  2/2  loss 10.801\n");
  expect(written("ddp", 0, 1000, 1000, "loss 1"), "ddp  100/1000  loss 1\n", '\n', 10,
         "ddp  1000/1000  loss 1\n");
  expect(written("ddp", 0, 17, 17, "loss 1"), "ddp  2/17  loss 1\n", '\n', 10,
         "ddp  17/17  loss 1\n");
  // At every tenth of this run, after steps of an earlier one.
  expect(written("zero1", 990, 1000, 10, "loss 2"),
         "zero1  991/1000  loss 2\nzero1  992/1000  loss 2\n", '\n', 10, "1000/1000  loss 2\n");
}

TEST(Progress, DrawsAllStepsInOneLineOfATerminalAndEndsIt) {
  const std::string all = written("zero3", 0, 4, 4, "loss 1.5", /*to_terminal=*/true);
  expect(all, "\r\x1b[?7lzero3  1/4  loss 1.5  left 00:00:0", '\r', 4,
         "zero3  4/4  loss 1.5  left 00:00:00\x1b[K\x1b[?7h\n");
  EXPECT_EQ(std::ranges::count(all, '\n'), 1);
  // One that is left open, so that an error has a line of its own.
  expect(written("zero1", 2, 6, 1, "loss 3", /*to_terminal=*/true),
         "\r\x1b[?7lzero1  3/6  loss 3  left 00:00:0", '\r', 1, "\n");
}

TEST(Progress, SaysHowMuchTimeIsLeft) {
  Memory memory;
  Progress progress("ddp", 0, 10000, memory.stream(), /*to_terminal=*/true);
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  progress.step("loss 1");
  const std::string text = memory.text();
  EXPECT_EQ(text.find("left 00:00:0"), std::string::npos) << text;  // at least 2 ms x 9999
}

TEST(Progress, StaysSilentBeforeTheFirstStepAndWithoutALabel) {
  EXPECT_EQ(written("ddp", 0, 5, 0, "", /*to_terminal=*/true), "");
  EXPECT_EQ(written("", 0, 1, 1, "loss 1", /*to_terminal=*/true), "");
}

}  // namespace
}  // namespace zero::ladder
