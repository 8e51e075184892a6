#pragma once

#include <exception>
#include <stdexcept>
#include <string>

namespace zero {

/// The exception for everything a user can cause and mend: a wrong option, a bad file, ranks that
/// disagree, a peer that went away. The message says what was wrong and what would be right; the
/// program's top level puts the rank before it and exits with a code other than 0.
///
/// A broken invariant of the project itself is not an Error: it is a TORCH_INTERNAL_ASSERT.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// What `error` says. What LibTorch's own errors (c10::Error) add to what(), some thirty lines of
/// C++ calls, is left out.
std::string message_of(const std::exception& error);

}  // namespace zero
