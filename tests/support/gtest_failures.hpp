#pragma once

#include <gtest/gtest.h>

#include <string>

namespace zero::testing {

/// Whether a test that has run failed by an assertion on some rank, not because a rank crashed,
/// threw or was killed: only then did the test notice what is wrong.
inline bool failed_by_assertion(const ::testing::TestInfo& info) {
  if (!info.should_run()) return false;
  const auto& result = *info.result();
  for (int p = 0; p < result.total_part_count(); ++p) {
    const std::string text = result.GetTestPartResult(p).message();
    if (text.find("Failure\n") != std::string::npos &&
        text.find("ended by signal") == std::string::npos &&
        text.find("was killed") == std::string::npos) {
      return true;
    }
  }
  return false;
}

/// Whether a test whose full name has `part` in it did.
inline bool any_failed_by_assertion(const std::string& part = "") {
  const auto& program = *::testing::UnitTest::GetInstance();
  for (int s = 0; s < program.total_test_suite_count(); ++s) {
    const auto& suite = *program.GetTestSuite(s);
    for (int t = 0; t < suite.total_test_count(); ++t) {
      const auto& info = *suite.GetTestInfo(t);
      const std::string name = std::string(suite.name()) + "." + info.name();
      if (name.find(part) != std::string::npos && failed_by_assertion(info)) return true;
    }
  }
  return false;
}

}  // namespace zero::testing
