#pragma once

#include <cstdlib>
#include <optional>
#include <string>

namespace zero::testing {

/// Sets an environment variable as long as it lives, for processes that start meanwhile.
class SetVariable {
 public:
  SetVariable(const char* name, const std::string& value) : name_(name) {
    if (const char* const before = std::getenv(name)) before_ = before;
    ::setenv(name, value.c_str(), /*overwrite=*/1);
  }
  ~SetVariable() {
    ::unsetenv(name_);
    if (before_) ::setenv(name_, before_->c_str(), /*overwrite=*/1);
  }
  SetVariable(const SetVariable&) = delete;
  SetVariable& operator=(const SetVariable&) = delete;

 private:
  const char* name_;
  std::optional<std::string> before_;
};

}  // namespace zero::testing
