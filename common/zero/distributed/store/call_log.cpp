#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include <zero/distributed/store/call_log.hpp>

namespace zero::dist {

std::string peer_is_late(int peer, std::chrono::milliseconds timeout) {
  return fmt::format(
      "nothing from rank {} within {} s; it is stopped, far behind, or in another collective", peer,
      timeout.count() / 1000.0);
}

std::string peer_is_gone(int peer) {
  return fmt::format(
      "the connection to rank {} is gone; it ended, or left after an error of its own", peer);
}

std::string different_calls(int rank, std::string_view call, int other,
                            std::string_view others_call) {
  return fmt::format(
      "rank {} is in {}, rank {} is in {}; all ranks must call the same functions in the same "
      "order",
      rank, call, other, others_call);
}

std::string call_text(std::string_view public_call, const std::string& what) {
  return public_call.empty() ? what : fmt::format("{} ({})", public_call, what);
}

CallLog::~CallLog() {
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
  }
  changed_.notify_all();
  if (watcher_.joinable()) watcher_.join();
}

void CallLog::add(std::string_view operation, std::string_view purpose, std::int64_t bytes) {
  records_[static_cast<std::size_t>(count_++ % kRecords)] = {public_call_, operation, purpose,
                                                             bytes};
}

std::string CallLog::Record::text() const {
  return call_text(public_call,
                   purpose.empty() ? std::string(operation)
                                   : fmt::format("{} for {}, {} bytes", operation, purpose, bytes));
}

CallLog::Calls CallLog::list() const {
  Calls calls;
  for (std::int64_t i = std::max<std::int64_t>(count_ - kRecords, 0); i < count_; ++i) {
    calls[i] = record(i).text();
  }
  return calls;
}

std::string CallLog::disagreement() { return compare(list()); }

std::string CallLog::compare(const Calls& mine) {
  const auto key = [](int rank) { return fmt::format("calls/{}", rank); };
  // A wait that is over its time limit must not wait for the store as well.
  if (store_ == nullptr || store_is_slow_ || asks_store_.exchange(true)) return "";
  const auto started = std::chrono::steady_clock::now();
  std::string found;
  try {
    store_->set(key(rank_), nlohmann::json(mine).dump());
    for (int r = 0; r < size_; ++r) {
      if (r == rank_ || !store_->check({key(r)})) continue;
      const Calls others = nlohmann::json::parse(store_->get_to_str(key(r)));
      for (const auto& [index, theirs] : others) {
        const auto ours = mine.find(index);
        if (!found.empty() || ours == mine.end() || ours->second == theirs) continue;
        found = different_calls(rank_, ours->second, r, theirs);
      }
    }
  } catch (const std::exception&) {
    store_is_slow_ = true;
  }
  if (std::chrono::steady_clock::now() - started > kPatience) store_is_slow_ = true;
  asks_store_ = false;
  return found;
}

CallLog::Waiting::Waiting(CallLog& log, std::function<void()> abort) : log_(log) {
  if (log_.store_ == nullptr) return;
  const std::lock_guard lock(log_.mutex_);
  ++log_.waits_;
  log_.abort_ = std::move(abort);
  log_.found_.clear();
  if (!log_.watcher_.joinable()) log_.watcher_ = std::thread([&log] { log.watch(); });
}

CallLog::Waiting::~Waiting() {
  const std::lock_guard lock(log_.mutex_);
  log_.abort_ = nullptr;
}

std::string CallLog::Waiting::found() const {
  const std::lock_guard lock(log_.mutex_);
  return log_.found_;
}

void CallLog::watch() {
  std::unique_lock lock(mutex_);
  std::int64_t seen = 0;  // the wait that was current at the last look
  while (!changed_.wait_for(lock, kPatience, [this] { return ended_; })) {
    if (!abort_ || !found_.empty()) continue;
    if (std::exchange(seen, waits_) != waits_) continue;  // a new wait
    // The records do not change while the other thread waits. Unlocked: the store may be slow.
    const Calls mine = list();
    lock.unlock();
    const std::string found = compare(mine);
    lock.lock();
    if (found.empty() || !abort_ || waits_ != seen) continue;
    found_ = found;
    try {
      abort_();
    } catch (const std::exception&) {
      // A wait that cannot be aborted lasts until its time limit and reports `found_` then.
    }
  }
}

}  // namespace zero::dist
