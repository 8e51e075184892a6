#include <fmt/format.h>

#include <algorithm>
#include <future>
#include <thread>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>
#include <vector>

#include <zero/base/error.hpp>
#include <zero/distributed/connect.hpp>
#include <zero/distributed/store/store.hpp>

namespace zero::dist {
namespace {

// How long a server that runs may need for an answer. Without it, an answer at the time limit, such
// as "the key is not there", would be late.
constexpr std::chrono::seconds kToAnswer{1};

// What `question` returns, if it does so in time.
template <typename Question>
auto within(std::chrono::milliseconds limit, const std::string& name, Question question) {
  std::packaged_task<decltype(question())()> task(std::move(question));
  auto answer = task.get_future();
  std::thread asking(std::move(task));
  if (answer.wait_for(limit + kToAnswer) != std::future_status::ready) {
    asking.detach();
    throw Error(fmt::format(
        "{} does not answer within {} s: its process is stopped, or cannot be reached any more",
        name, limit.count() / 1000.0));
  }
  asking.join();  // so that the asking thread is not the last to hold the store
  return answer.get();
}

/// Wraps a store so that calls do not wait forever for a server that is stopped or unreachable.
/// c10d's TCPStore has a time limit for missing keys but none for the server. If an answer is late
/// the call throws zero::Error; the thread that waits for it is left behind, with its reference to
/// the store.
class TimedStore final : public c10d::Store {
  // The answer is late after `timeout` or the time limit, whichever is longer.
  template <typename Question>
  auto ask(Question question, std::chrono::milliseconds timeout = {}) {
    return within(std::max(timeout, getTimeout()), name_,
                  [=, store = base_] { return question(*store); });
  }

 public:
  /// `name` names the store in messages.
  TimedStore(std::string name, std::chrono::milliseconds timeout, StorePtr base)
      : c10d::Store(timeout), name_(std::move(name)), base_(std::move(base)) {}

  c10::intrusive_ptr<c10d::Store> clone() override {
    return c10::make_intrusive<TimedStore>(name_, getTimeout(), base_->clone());
  }
  void set(const std::string& key, const std::vector<std::uint8_t>& value) override {
    ask([=](c10d::Store& store) { store.set(key, value); });
  }
  std::vector<std::uint8_t> get(const std::string& key) override {
    return ask([=](c10d::Store& store) { return store.get(key); });
  }
  std::int64_t add(const std::string& key, std::int64_t value) override {
    return ask([=](c10d::Store& store) { return store.add(key, value); });
  }
  bool deleteKey(const std::string& key) override {
    return ask([=](c10d::Store& store) { return store.deleteKey(key); });
  }
  bool check(const std::vector<std::string>& keys) override {
    return ask([=](c10d::Store& store) { return store.check(keys); });
  }
  std::int64_t getNumKeys() override {
    return ask([](c10d::Store& store) { return store.getNumKeys(); });
  }
  void wait(const std::vector<std::string>& keys) override { wait(keys, getTimeout()); }
  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds& timeout) override {
    ask([=](c10d::Store& store) { store.wait(keys, timeout); }, timeout);
  }

 private:
  std::string name_;
  StorePtr base_;
};

StorePtr tcp_store(const RankEnvironment& env, std::chrono::milliseconds timeout) {
  c10d::TCPStoreOptions store_options;
  store_options.port = static_cast<std::uint16_t>(env.master_port);
  store_options.isServer = env.rank == 0 && !env.store_is_served;
  store_options.waitWorkers = false;  // wait_for_everybody() names missing ranks
  store_options.timeout = timeout;
  const std::string name = fmt::format("the store at {}:{}", env.master_address, env.master_port);
  try {
    auto store = within(timeout, name, [address = env.master_address, store_options]() -> StorePtr {
      return c10::make_intrusive<c10d::TCPStore>(address, store_options);
    });
    return c10::make_intrusive<TimedStore>(name, timeout, std::move(store));
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
  return connect_through(tcp_store(environment, time_limit(options.timeout)), environment.rank,
                         environment.world_size, environment.local_rank, adjusted, patience,
                         environment.said_by);
}

}  // namespace zero::dist
