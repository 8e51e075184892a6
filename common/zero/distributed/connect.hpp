#pragma once

#include <memory>

#include <zero/distributed/connect_in_folder.hpp>
#include <zero/distributed/environment.hpp>

namespace zero::dist {

/// Connects this rank to the others through the TCP store at master_address:master_port, which rank
/// 0 serves unless the launcher does. Called by all ranks; blocks until all have connected. Throws
/// zero::Error that names the missing ranks after the time limit, or the port if it is taken.
///
/// Ranks are on one host (Communicator::host_of()) if their machines have one name and one start,
/// and torchrun, if it started them, says the same node (GROUP_RANK). One machine stands for
/// several hosts with the environment variables ZERO_RANKS_PER_HOST=S, by which rank r is on host r
/// / S, and ZERO_LINK=100mbit (or 1gbit, 30MB/s), which limits what CPU tensors send between hosts:
/// each host's way out and its way in have that many bits or bytes a second, for all its ranks
/// together.
///
/// Ignores SIGPIPE from then on, unless the program handles it: a lost peer must be an error and
/// not end the process.
std::unique_ptr<Communicator> connect(const RankEnvironment& environment,
                                      const ConnectOptions& options = {});

}  // namespace zero::dist
