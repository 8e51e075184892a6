#pragma once

#include <gtest/gtest.h>

#include <source_location>
#include <string>
#include <utility>
#include <vector>

#include <zero/base/error.hpp>

namespace zero::testing {

/// JSON of lists within lists, so many that a parser without a bound uses up the stack.
inline std::string nested_json(std::size_t levels = 300'000) {
  return std::string(levels, '[') + std::string(levels, ']');
}

/// The message of the zero::Error that `action` throws; empty where it throws none.
template <typename Action>
std::string error_of(Action&& action) {
  try {
    std::forward<Action>(action)();
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

/// Expects that `action` throws a zero::Error whose message has all of `parts`. A failure is one of
/// the line that calls this.
template <typename Action>
void expect_error(Action&& action, const std::vector<std::string>& parts,
                  std::source_location where = std::source_location::current()) {
  const std::string message = error_of(std::forward<Action>(action));
  if (message.empty()) ADD_FAILURE_AT(where.file_name(), where.line()) << "there was no error";
  for (const std::string& part : parts) {
    if (message.find(part) != std::string::npos) continue;
    ADD_FAILURE_AT(where.file_name(), where.line()) << "no '" << part << "' in: " << message;
  }
}

}  // namespace zero::testing
