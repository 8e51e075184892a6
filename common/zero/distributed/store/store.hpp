#pragma once

// Private to common/zero/distributed: the store through which ranks meet.

#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace zero::dist {

using StorePtr = c10::intrusive_ptr<c10d::Store>;

/// The message of a c10d exception without the stack trace that follows it.
inline std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

/// The key under which the launcher reports that a rank has failed, and how.
inline constexpr const char* kFailedKey = "zero/failed";

}  // namespace zero::dist
