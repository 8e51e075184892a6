#pragma once

// Private to common/zero/distributed: where ranks meet, and how those that wait hear of one that
// ended.

#include <chrono>
#include <filesystem>
#include <functional>
#include <string>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <vector>

#include <zero/distributed/store/store.hpp>

namespace zero::dist {

/// A store in a folder that all ranks see: a file for each key, which appears under its name when
/// it is complete. No lock: a rank that is stopped, wherever, holds nobody up (c10d's FileStore has
/// one, and whoever is stopped while it holds that stops all others for ever). No network either:
/// c10d's TCPStore looks up the name of every address, and a resolver may not answer.
///
/// Counters are chains of files, one for each value, so that a value is given to one rank only.
class FolderStore final : public c10d::Store {
 public:
  /// `folder` must exist.
  explicit FolderStore(std::filesystem::path folder) : folder_(std::move(folder)) {}

  using c10d::Store::set;
  c10::intrusive_ptr<c10d::Store> clone() override;
  void set(const std::string& key, const std::vector<std::uint8_t>& value) override;
  std::vector<std::uint8_t> get(const std::string& key) override;
  std::int64_t add(const std::string& key, std::int64_t value) override;
  bool deleteKey(const std::string& key) override;
  bool check(const std::vector<std::string>& keys) override;
  std::int64_t getNumKeys() override;
  void wait(const std::vector<std::string>& keys) override { wait(keys, getTimeout()); }
  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds& timeout) override;

 private:
  std::filesystem::path file_of(const std::string& key, std::int64_t version = 0) const;
  std::filesystem::path written(const std::string& text) const;
  std::int64_t last_version(const std::string& key) const;

  std::filesystem::path folder_;
};

/// Where the ranks meet that this process starts by itself: a folder in /dev/shm, or else in the
/// system's temporary one, which goes away with the object. It tells ranks that wait for one that
/// has failed.
class Rendezvous {
 public:
  Rendezvous();
  Rendezvous(const Rendezvous&) = delete;
  Rendezvous& operator=(const Rendezvous&) = delete;
  ~Rendezvous();

  const std::filesystem::path& folder() const { return folder_; }

  /// Ends the wait of all ranks for something that is not in the store yet; `how` says what became
  /// of which rank, and is their error.
  void say_failed(const std::string& how) const;

 private:
  std::filesystem::path folder_;
};

/// A store that does not wait for ever for a server that is stopped or out of reach, as c10d's
/// TCPStore does: that one has a time limit for keys that nobody sets, and none for the server.
///
/// Where an answer is later than the time limit the call throws std::runtime_error, and the thread
/// that waits for it, with the store, is left behind.
class TimedStore final : public c10d::Store {
 public:
  /// `name` is what the store is called in messages.
  TimedStore(StorePtr base, std::string name, std::chrono::milliseconds timeout);

  using c10d::Store::set;
  c10::intrusive_ptr<c10d::Store> clone() override;
  void set(const std::string& key, const std::vector<std::uint8_t>& value) override;
  std::vector<std::uint8_t> get(const std::string& key) override;
  std::int64_t add(const std::string& key, std::int64_t value) override;
  bool deleteKey(const std::string& key) override;
  bool check(const std::vector<std::string>& keys) override;
  std::int64_t getNumKeys() override;
  void wait(const std::vector<std::string>& keys) override { wait(keys, getTimeout()); }
  /// The answer is late when it has not come one time limit after `timeout`.
  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds& timeout) override;

 private:
  template <typename Answer>
  Answer within(std::chrono::milliseconds limit, std::function<Answer(c10d::Store&)> ask) const;

  StorePtr base_;
  std::string name_;
};

/// A store in which nobody waits for what will never come: a wait ends with zero::Error soon after
/// the process that started the ranks has said that one failed. Under a launcher of others nobody
/// says so, and a wait lasts until its time limit, or until the launcher ends this rank.
class WatchedStore final : public c10d::PrefixStore {
 public:
  WatchedStore(std::string prefix, StorePtr base)
      : c10d::PrefixStore(std::move(prefix), base), base_(std::move(base)) {}

  std::vector<std::uint8_t> get(const std::string& key) override;
  void wait(const std::vector<std::string>& keys) override;
  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds& timeout) override;

 private:
  StorePtr base_;
};

}  // namespace zero::dist
