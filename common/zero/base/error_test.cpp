#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include <zero/base/error.hpp>

namespace zero {
namespace {

TEST(MessageOf, IsWhatTheErrorSaysWithoutTheCallsThatLibTorchLists) {
  EXPECT_EQ(message_of(Error("a sentence")), "a sentence");
  EXPECT_EQ(message_of(std::out_of_range("another")), "another");
  try {
    TORCH_CHECK(false, "one of LibTorch's");
  } catch (const std::exception& error) {
    EXPECT_EQ(message_of(error), "one of LibTorch's");
    EXPECT_NE(error.what(), message_of(error));
  }
  try {
    TORCH_CHECK_INDEX(false, "and of a class of its own");
  } catch (const std::exception& error) {
    EXPECT_EQ(message_of(error), "and of a class of its own");
  }
}

}  // namespace
}  // namespace zero
