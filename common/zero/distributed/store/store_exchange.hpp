#pragma once

// Private to zero/distributed.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <zero/distributed/store/call_log.hpp>
#include <zero/distributed/store/store.hpp>

namespace zero::dist {

/// Start-up and object exchange over a c10d store, shared by all backends.
class StoreExchange {
 public:
  /// `server`: the rank whose process serves the store; -1 if none of these ranks does.
  StoreExchange(StorePtr store, int rank, int size, std::chrono::milliseconds timeout, int server)
      : store_(std::move(store)),
        rank_(rank),
        size_(size),
        timeout_(timeout),
        server_(server),
        log_(store_, rank, size) {}
  StoreExchange(const StoreExchange&) = delete;
  StoreExchange& operator=(const StoreExchange&) = delete;

  /// Of a single rank, which needs no store.
  explicit StoreExchange(std::chrono::milliseconds timeout)
      : StoreExchange(nullptr, /*rank=*/0, /*size=*/1, timeout, /*server=*/-1) {}

  /// See Communicator::exchange.
  std::vector<std::string> exchange(const std::string& text);

  /// The calls of all users of this store.
  CallLog& call_log() { return log_; }
  const StorePtr& store() const { return store_; }
  int server() const { return server_; }

 private:
  static std::string key_of(std::uint64_t call, int rank, std::size_t part);
  void put(std::uint64_t call, const std::string& text);
  std::string take(int rank, std::uint64_t call, std::int64_t round);
  void wait_for(const std::string& key);
  void leave(std::int64_t round);
  // Calls `wait` and turns c10d's exceptions into a zero::Error that names what was waited for.
  template <typename Wait>
  auto patiently(const std::string& what, const Wait& wait);

  StorePtr store_;
  int rank_;
  int size_;
  std::chrono::milliseconds timeout_;
  int server_;
  CallLog log_;
  std::int64_t round_ = 0;
  std::vector<std::string> mine_;  // keys of this rank's latest text
};

}  // namespace zero::dist
