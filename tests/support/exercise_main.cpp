// The main program of an exercise's tests. With --expect-failure it succeeds if an assertion
// failed: that is how a starter and a wrong answer are to end.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>

#include <zero/memory/accounting.hpp>

#include "gtest_failures.hpp"

int main(int argc, char** argv) {
  zero::memory::install();
  ::testing::InitGoogleTest(&argc, argv);
  const bool expect_failure = argc > 1 && std::strcmp(argv[1], "--expect-failure") == 0;
  const int code = RUN_ALL_TESTS();
  if (!expect_failure) return code;
  const bool noticed = code != 0 && zero::testing::any_failed_by_assertion();
  fmt::print("\n{}\n", noticed ? "An assertion failed, as it must for this answer."
                               : "NOBODY NOTICED that this answer is wrong.");
  return noticed ? 0 : 1;
}
