#pragma once

// Private to common/zero/distributed: what ranks meet in.

#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace zero::dist {

using StorePtr = c10::intrusive_ptr<c10d::Store>;

/// What an exception of c10d says, without the stack trace behind it.
inline std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

/// The key under which the launcher says that a rank has failed, and how.
inline constexpr const char* kFailedKey = "zero/failed";

}  // namespace zero::dist
