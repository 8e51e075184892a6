#pragma once

#include <exception>
#include <stdexcept>
#include <string>

namespace zero {

/// The exception for every error that a user can cause and fix: a wrong option, a bad file, ranks
/// that disagree, a lost peer. The message says what was wrong and what would be right. A program
/// prints it after its name, a forked rank after "rank N"; the exit code is not 0.
///
/// A broken invariant of the project itself is not an Error: it is a TORCH_INTERNAL_ASSERT.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The message of `error` without the C++ stack, some thirty lines, that LibTorch's own errors
/// (c10::Error) add to what().
std::string message_of(const std::exception& error);

}  // namespace zero
