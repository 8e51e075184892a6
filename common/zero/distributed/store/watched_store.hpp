#pragma once

// Private to zero/distributed.

#include <chrono>
#include <string>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <utility>
#include <vector>

#include <zero/distributed/store/store.hpp>

namespace zero::dist {

/// A store whose waits end early when a rank has failed: they throw zero::Error soon after the
/// process that started the ranks reports the failure. Other launchers report nothing: there a wait
/// lasts until its time limit, or until the launcher ends this rank.
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
