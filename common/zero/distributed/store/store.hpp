#pragma once

// Private to common/zero/distributed: the store through which ranks meet.

#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <zero/distributed/connect_in_folder.hpp>

namespace zero::dist {

using StorePtr = c10::intrusive_ptr<c10d::Store>;

/// The message of a c10d exception without the stack trace that follows it.
inline std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

/// The key under which the launcher reports that a rank has failed, and how.
inline constexpr const char* kFailedKey = "zero/failed";

/// What both forms of connecting end in: through a store that all ranks have. The ranks wait for
/// each other for `patience` times the time limit. `said_by`: see RankEnvironment.
std::unique_ptr<Communicator> connect_through(const StorePtr& base, int rank, int size,
                                              int local_rank, ConnectOptions options,
                                              int patience = 1, const std::string& said_by = "");

}  // namespace zero::dist
