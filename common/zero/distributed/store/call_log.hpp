#pragma once

// Private to zero/distributed.

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include <zero/distributed/store/store.hpp>

namespace zero::dist {

/// How errors about calls that differ end.
inline constexpr const char* kCallTheSame =
    "all ranks must call the same functions in the same order";

/// The latest collectives and exchanges of this rank, so that ranks that wait for each other in
/// different calls find out soon and not at the time limit. Nothing is sent as long as nobody
/// waits: only a rank that has waited for kPatience writes its list into the store, and compares it
/// with the lists that others have written there.
class CallLog {
 public:
  /// How long a rank waits before it looks, and between two looks.
  static constexpr std::chrono::milliseconds kPatience{500};

  /// `store` is null for one rank, which waits for nobody.
  CallLog(StorePtr store, int rank, int size)
      : store_(std::move(store)), rank_(rank), size_(size) {}
  ~CallLog();
  CallLog(const CallLog&) = delete;
  CallLog& operator=(const CallLog&) = delete;

  /// The function of the public interface that runs, such as "Engine::save"; empty: none that is
  /// known. Returns the one before. `name` must live as long as the log: a literal.
  std::string_view set_public_call(std::string_view name) {
    return std::exchange(public_call_, name);
  }
  std::string_view public_call() const { return public_call_; }

  /// Adds what this rank calls next. All ranks must call the same. `operation` and `purpose` are
  /// literals.
  void add(std::string_view operation, std::string_view purpose, std::int64_t bytes);

  /// What this rank called last, for messages: "Engine::save (all_gather for parameter, 8 bytes)".
  std::string last() const;

  /// Two ranks and their calls, where the lists of this rank and another differ; empty where they
  /// do not, where no other rank has written its list, and where the store is gone.
  std::string disagreement();

  /// While it lives, a thread of the log calls disagreement() every kPatience, and ends the wait by
  /// calling `abort` where there is one. For waits that cannot look themselves.
  class Waiting {
   public:
    Waiting(CallLog& log, std::function<void()> abort);
    ~Waiting();
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;
    /// The disagreement that ended the wait; empty where there was none.
    std::string found() const;

   private:
    CallLog& log_;
  };

 private:
  struct Record {
    std::string_view public_call, operation, purpose;
    std::int64_t bytes = 0;
    std::string text() const;
  };
  static constexpr std::int64_t kRecords = 64;

  const Record& record(std::int64_t index) const {
    return records_[static_cast<std::size_t>(index % kRecords)];
  }
  std::string list() const;
  std::string compare(const std::string& mine);
  void watch();

  StorePtr store_;
  int rank_;
  int size_;
  std::string_view public_call_;
  std::array<Record, kRecords> records_;
  std::int64_t count_ = 0;

  // Of Waiting: the thread that waits and the thread that looks.
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::thread watcher_;
  bool ended_ = false;
  std::int64_t waits_ = 0;  // so far, to tell them apart
  std::function<void()> abort_;
  std::string found_;
};

}  // namespace zero::dist
