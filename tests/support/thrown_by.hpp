#pragma once

#include <exception>
#include <functional>
#include <string>

#include <zero/base/error.hpp>

namespace zero::testing {

/// The message of whatever `action` throws, LibTorch's without its backtrace; empty for nothing.
inline std::string thrown_by(const std::function<void()>& action) {
  try {
    action();
  } catch (const std::exception& error) {
    return message_of(error);
  }
  return "";
}

}  // namespace zero::testing
