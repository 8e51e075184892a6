#include "arguments.hpp"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include <zero/base/error.hpp>

namespace zero::tools {
namespace {

TEST(Arguments, NumbersAreNumbers) {
  for (const char* good : {"1", "-3", "0.5", "inf", "1e9", "no number, which CLI11 refuses"}) {
    EXPECT_EQ(refuse_nan(good), "");
  }
  for (const char* bad : {"nan", "NaN", "-nan", "nan(1)"}) {
    EXPECT_EQ(refuse_nan(bad), "'" + std::string(bad) + "' is not a number");
  }
}

TEST(MessageOf, IsWhatTheErrorSaysWithoutTheCallsThatLibTorchLists) {
  EXPECT_EQ(zero::message_of(Error("a sentence")), "a sentence");
  EXPECT_EQ(zero::message_of(std::out_of_range("another")), "another");
  try {
    TORCH_CHECK(false, "one of LibTorch's");
  } catch (const std::exception& error) {
    EXPECT_EQ(zero::message_of(error), "one of LibTorch's");
    EXPECT_NE(error.what(), zero::message_of(error));
  }
  try {
    TORCH_CHECK_INDEX(false, "and of a class of its own");
  } catch (const std::exception& error) {
    EXPECT_EQ(zero::message_of(error), "and of a class of its own");
  }
}

}  // namespace
}  // namespace zero::tools
