#pragma once

#include <string>
#include <utility>

#include <zero/base/error.hpp>

namespace zero::testing {

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

}  // namespace zero::testing
