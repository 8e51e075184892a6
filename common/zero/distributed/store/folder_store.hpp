#pragma once

// Private to zero/distributed.

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include <zero/distributed/store/store.hpp>

namespace zero::dist {

/// The meeting place of ranks of one machine: a store in a folder that all of them see. Each key is
/// a file, renamed to its final name when it is complete. There is no lock, so a stopped rank never
/// blocks the others (in c10d's FileStore a rank that stops while it holds the lock blocks all
/// others forever). There is no network either: c10d's TCPStore looks up the name of every address,
/// and a resolver may not answer.
///
/// It has no counters: ranks that meet in a folder need none, and ProcessGroupNCCL never calls
/// add().
///
/// A wait for a key ends with zero::Error soon after the launcher has set kFailedKey.
class FolderStore final : public c10d::Store {
 public:
  /// In a new folder in /dev/shm, or else in the system's temporary folder, for ranks that this
  /// process starts itself. The destructor removes it.
  FolderStore();
  /// `folder` must exist.
  explicit FolderStore(std::filesystem::path folder) : folder_(std::move(folder)) {}
  ~FolderStore() override;

  const std::filesystem::path& folder() const { return folder_; }

  using c10d::Store::set;
  c10::intrusive_ptr<c10d::Store> clone() override;
  void set(const std::string& key, const std::vector<std::uint8_t>& value) override;
  std::vector<std::uint8_t> get(const std::string& key) override;
  /// Must not be called.
  std::int64_t add(const std::string& key, std::int64_t value) override;
  bool deleteKey(const std::string& key) override;
  bool check(const std::vector<std::string>& keys) override;
  std::int64_t getNumKeys() override;
  void wait(const std::vector<std::string>& keys) override { wait(keys, getTimeout()); }
  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds& timeout) override;

 private:
  std::filesystem::path file_of(const std::string& key) const;

  std::filesystem::path folder_;
  bool removes_folder_ = false;
};

}  // namespace zero::dist
