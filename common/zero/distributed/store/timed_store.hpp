#pragma once

// Private to zero/distributed.

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <zero/distributed/store/store.hpp>

namespace zero::dist {

/// Wraps a store so that calls do not wait forever for a server that is stopped or unreachable.
/// c10d's TCPStore has a time limit for missing keys but none for the server.
///
/// If an answer is late the call throws zero::Error; the thread that waits for it is left behind,
/// with its reference to the store.
class TimedStore final : public c10d::Store {
 public:
  /// `name` names the store in messages. `connect` makes the store; that is late, too, if it takes
  /// longer than the time limit.
  TimedStore(std::string name, std::chrono::milliseconds timeout,
             const std::function<StorePtr()>& connect);
  TimedStore(std::string name, std::chrono::milliseconds timeout, StorePtr base);

  using c10d::Store::set;
  c10::intrusive_ptr<c10d::Store> clone() override;
  void set(const std::string& key, const std::vector<std::uint8_t>& value) override;
  std::vector<std::uint8_t> get(const std::string& key) override;
  std::int64_t add(const std::string& key, std::int64_t value) override;
  bool deleteKey(const std::string& key) override;
  bool check(const std::vector<std::string>& keys) override;
  std::int64_t getNumKeys() override;
  void wait(const std::vector<std::string>& keys) override { wait(keys, getTimeout()); }
  /// The answer is late after `timeout` or the time limit, whichever is longer.
  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds& timeout) override;

 private:
  std::string name_;
  StorePtr base_;
};

}  // namespace zero::dist
