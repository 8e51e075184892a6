#include <algorithm>
#include <exception>

#include <zero/base/error.hpp>
#include <zero/distributed/store/watched_store.hpp>

namespace zero::dist {
namespace {

constexpr auto kLookAgain = std::chrono::milliseconds(250);

}  // namespace

std::vector<std::uint8_t> WatchedStore::get(const std::string& key) {
  wait({key});
  return c10d::PrefixStore::get(key);
}

void WatchedStore::wait(const std::vector<std::string>& keys) { wait(keys, getTimeout()); }

void WatchedStore::wait(const std::vector<std::string>& keys,
                        const std::chrono::milliseconds& timeout) {
  using Clock = std::chrono::steady_clock;
  using std::chrono::milliseconds;
  const auto deadline = Clock::now() + timeout;
  while (true) {
    const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now());
    try {
      // Not 0: some stores take it for no limit.
      c10d::PrefixStore::wait(keys, std::clamp<milliseconds>(left, milliseconds(1), kLookAgain));
      return;
    } catch (const std::exception&) {
      // Timed out, or a store that was slow to fail.
      if (left <= kLookAgain || Clock::now() >= deadline) throw;
      if (check(keys)) return;  // throws if the store is gone
    }
    if (base_->check({kFailedKey})) throw Error(base_->get_to_str(kFailedKey));
  }
}

}  // namespace zero::dist
