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

/// Arguments that the ladder refuses, and what its message has in it.
struct BadInput {
  std::string arguments;
  std::vector<std::string> messages;
};

/// Each of `inputs`, after the arguments `first`, as bad input or wrong usage.
inline void expect_all_refused(const std::string& first, const std::vector<BadInput>& inputs) {
  for (const BadInput& input : inputs) {
    expect_refused(TestFolder(), first + input.arguments, input.messages, ::testing::AnyOf(1, 2));
  }
}

}  // namespace zero::testing
