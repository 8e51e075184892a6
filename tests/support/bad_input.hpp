#pragma once

#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "ladder_program.hpp"

namespace zero::testing {

/// Runs the ladder with `arguments`: it must end with such an exit code and all `messages`, and
/// leave `folder` as it was. What it said.
inline std::string expect_refused(const TestFolder& folder, const std::string& arguments,
                                  const std::vector<std::string>& messages,
                                  const ::testing::Matcher<int>& code = 1) {
  SCOPED_TRACE(arguments);
  const auto before = folder.listing();
  const ProcessResult ended = run_ladder(folder, arguments);
  EXPECT_THAT(ended.code, code) << ended.said;
  for (const std::string& message : messages) {
    EXPECT_THAT(ended.said, ::testing::HasSubstr(message));
  }
  EXPECT_EQ(folder.listing(), before);
  return ended.said;
}

}  // namespace zero::testing
