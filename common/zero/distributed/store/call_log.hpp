#pragma once

// Private to zero/distributed.

#include <c10/core/ScalarType.h>

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <zero/distributed/store/store.hpp>
#include <zero/distributed/work.hpp>

namespace zero::dist {

// Messages about a peer that failed.

/// Nothing came from `peer` within the time limit.
std::string peer_is_late(int peer, std::chrono::milliseconds timeout);
/// `peer` or the connection to it is gone.
std::string peer_is_gone(int peer);

/// The latest collectives and exchanges of this rank, so that ranks that wait for each other in
/// different calls find out soon and not at the time limit. Each call has a fingerprint, by which
/// messages and addresses in memory are found: ranks in different calls wait
/// for each other and never take one thing for the other. Normally the log sends nothing: only a
/// rank that has waited for kPatience writes its list into the store and compares it with the lists
/// of other ranks there.
class CallLog {
 public:
  /// How long a rank waits before it compares, and between two comparisons.
  static constexpr std::chrono::milliseconds kPatience{500};

  /// `store` is null for a single rank, which never waits.
  /// `world_ranks`: by rank, which ranks of the world they are; empty: this is the world. Messages
  /// name these.
  CallLog(StorePtr store, int rank, int size, std::vector<int> world_ranks = {})
      : store_(std::move(store)), rank_(rank), size_(size), world_ranks_(std::move(world_ranks)) {}
  ~CallLog();
  CallLog(const CallLog&) = delete;
  CallLog& operator=(const CallLog&) = delete;

  const StorePtr& store() const { return store_; }
  int world_rank(int rank) const {
    return world_ranks_.empty() ? rank : world_ranks_[static_cast<std::size_t>(rank)];
  }

  Running running() const { return running_; }
  void set_running(Running running) { running_ = running; }

  /// A call; the texts are literals, but for the unit's name.
  struct Record {
    std::string_view public_call;
    std::string_view operation;
    std::string_view purpose = {};
    c10::ScalarType dtype = c10::ScalarType::Undefined;
    std::int64_t elements = 0;
    int root = -1;  ///< of a broadcast or reduce
    std::string unit = {};
    /// "Engine::step (all_reduce of 40 Float for gradient)"
    std::string text() const;
  };

  /// Adds the next call of this rank; all ranks must add the same. Returns its fingerprint: a
  /// number in the last kCounted bits, a hash of the record and of the whole number above them.
  std::uint64_t add(const Record& record);
  static constexpr int kCounted = 10;

  /// Two ranks and their calls, if the lists of this rank and another differ. Empty if they agree,
  /// if no other rank has written its list, or if the store is gone.
  std::string disagreement();

  /// While it lives, a thread of the log calls disagreement() every kPatience. If there is one, it
  /// calls `abort` to end the wait. For waits that cannot check by themselves. Several threads may
  /// have one.
  class Waiting {
   public:
    Waiting(CallLog& log, std::function<void()> abort);
    ~Waiting();
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;
    /// The disagreement that ended the wait, or empty.
    std::string found() const;

   private:
    CallLog& log_;
    std::int64_t number_;
  };

 private:
  static constexpr std::int64_t kRecords = 64;
  using Calls = std::map<std::int64_t, std::string>;  // texts by number

  const Record& record(std::int64_t index) const {
    return records_[static_cast<std::size_t>(index % kRecords)];
  }
  Calls list() const;
  std::string compare(const Calls& mine);
  void watch();

  StorePtr store_;
  int rank_;
  int size_;
  std::vector<int> world_ranks_;
  Running running_;
  std::array<Record, kRecords> records_;
  std::int64_t count_ = 0;
  std::timed_mutex asks_store_;              // held by the thread that waits for its answer
  std::atomic<bool> store_is_slow_ = false;  // or gone: it is not asked again

  // Guards what follows, and the records: threads that wait, and the one that compares, use them.
  std::mutex mutex_;
  std::condition_variable changed_;
  std::thread watcher_;
  bool ended_ = false;
  std::int64_t waits_ = 0;                                 // so far
  std::map<std::int64_t, std::function<void()>> waiting_;  // by number: what ends it
  std::string found_;
};

}  // namespace zero::dist
