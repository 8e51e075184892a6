#include <gtest/gtest.h>

#include <zero/memory/accounting.hpp>

int main(int argc, char** argv) {
  // Before the first tensor: ranks are forked from this process and inherit it.
  zero::memory::install();
  ::testing::InitGoogleTest(&argc, argv);
  const int result = RUN_ALL_TESTS();
  const ::testing::UnitTest& tests = *::testing::UnitTest::GetInstance();
  // For ctest, which would call it passed: nothing was tested.
  const bool skipped = tests.skipped_test_count() > 0 && tests.successful_test_count() == 0;
  return result == 0 && skipped ? 77 : result;
}
