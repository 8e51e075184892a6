#include <gtest/gtest.h>

#include <stdexcept>

#include <zero/base/kept_error.hpp>

namespace zero::base {
namespace {

TEST(KeptError, IsTheFirstOneAndThrownOnce) {
  KeptError kept;
  kept.rethrow();
  kept.keep([] {});
  EXPECT_FALSE(kept.is_there());
  kept.keep([] { throw std::runtime_error("first"); });
  kept.keep([] { throw std::runtime_error("second"); });
  kept.keep([] {});
  EXPECT_TRUE(kept.is_there());
  try {
    kept.rethrow();
    ADD_FAILURE() << "nothing was thrown";
  } catch (const std::exception& error) {
    EXPECT_STREQ(error.what(), "first");
  }
  EXPECT_FALSE(kept.is_there());
  kept.rethrow();
}

}  // namespace
}  // namespace zero::base
