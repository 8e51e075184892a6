#include <fmt/format.h>

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <zero/base/error.hpp>
#include <zero/distributed/connect.hpp>
#include <zero/distributed/store/connect_through.hpp>
#include <zero/distributed/store/timed_store.hpp>

namespace zero::dist {
namespace {

StorePtr tcp_store(const RankEnvironment& env, std::chrono::milliseconds timeout) {
  c10d::TCPStoreOptions store_options;
  store_options.port = static_cast<std::uint16_t>(env.master_port);
  store_options.isServer = env.rank == 0 && !env.store_is_served;
  store_options.waitWorkers = false;  // wait_for_everybody() names missing ranks
  store_options.timeout = timeout;
  try {
    return c10::make_intrusive<TimedStore>(
        fmt::format("the store at {}:{}", env.master_address, env.master_port), timeout,
        [address = env.master_address, store_options]() -> StorePtr {
          return c10::make_intrusive<c10d::TCPStore>(address, store_options);
        });
  } catch (const std::exception& error) {
    const std::string cause = first_line(error.what());
    if (store_options.isServer && cause.find("listen") != std::string::npos) {
      throw Error(
          fmt::format("rank 0 cannot listen on port {}: it is taken, or not allowed; choose "
                      "another MASTER_PORT ({})",
                      env.master_port, cause));
    }
    throw Error(fmt::format(
        "rank {} did not reach rank 0 at {}:{} within {} s; MASTER_ADDR must be "
        "the name or the address of rank 0's machine: {}",
        env.rank, env.master_address, env.master_port, timeout.count() / 1000.0, cause));
  }
}

}  // namespace

std::unique_ptr<Communicator> connect(const RankEnvironment& environment,
                                      const ConnectOptions& options) {
  if (environment.world_size == 1) return connect_alone(options);
  ConnectOptions adjusted = options;
  adjusted.prefix = fmt::format("attempt/{}/{}", environment.restarts, options.prefix);
  adjusted.loopback = adjusted.loopback || is_loopback(environment.master_address);
  // A launcher starts the ranks of a host again as soon as one of them has failed. Those of another
  // host may only then begin to notice it, and that can take them the time limit.
  const int patience = environment.restarts > 0 ? 2 : 1;
  return connect_through(tcp_store(environment, time_limit(options.timeout)),
                         environment.store_is_served ? -1 : 0, environment.rank,
                         environment.world_size, environment.local_rank, adjusted, patience,
                         environment.said_by);
}

}  // namespace zero::dist
