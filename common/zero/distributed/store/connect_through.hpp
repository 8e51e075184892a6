#pragma once

#include <memory>
#include <string>

#include <zero/distributed/connect_in_folder.hpp>
#include <zero/distributed/store/store.hpp>

namespace zero::dist {

/// What both forms of connecting end in: through a store that all ranks have. `server`: the rank
/// that serves it, or -1. The ranks wait for each other for `patience` times the time limit.
/// `said_by`: see RankEnvironment.
std::unique_ptr<Communicator> connect_through(const StorePtr& base, int server, int rank, int size,
                                              int local_rank, ConnectOptions options,
                                              int patience = 1, const std::string& said_by = "");

}  // namespace zero::dist
