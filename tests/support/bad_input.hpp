#pragma once

#include <gmock/gmock.h>

#include <ostream>
#include <string>
#include <vector>

#include "ladder_program.hpp"

namespace zero::testing {

/// Arguments that the ladder refuses, and what its message has in it. Names a test.
struct BadInput {
  std::string name;
  std::string arguments;
  std::vector<std::string> messages;
};

inline void PrintTo(const BadInput& input, std::ostream* out) { *out << input.arguments; }

/// Runs the ladder with `arguments`, those of `input` among them: it must end with code 1 or 2 and
/// all messages, and leave no file.
inline void expect_refused_before_writing(const BadInput& input, const std::string& arguments) {
  const TestFolder folder;
  const ProcessResult ended = run_ladder(folder, arguments);
  EXPECT_THAT(ended.code, ::testing::AnyOf(1, 2)) << ended.said;
  for (const std::string& message : input.messages) {
    EXPECT_THAT(ended.said, ::testing::HasSubstr(message));
  }
  EXPECT_THAT(folder.listing(), ::testing::IsEmpty());
}

}  // namespace zero::testing
