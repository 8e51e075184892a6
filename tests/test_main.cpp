#include <gtest/gtest.h>

#include <zero/memory/accounting.hpp>

int main(int argc, char** argv) {
  // Before the first tensor: ranks are forked from this process and inherit it.
  zero::memory::install();
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
