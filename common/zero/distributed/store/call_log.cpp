#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <sstream>

#include <zero/distributed/store/call_log.hpp>

namespace zero::dist {

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
  const std::string what = purpose.empty()
                               ? std::string(operation)
                               : fmt::format("{} for {}, {} bytes", operation, purpose, bytes);
  return public_call.empty() ? what : fmt::format("{} ({})", public_call, what);
}

std::string CallLog::last() const { return count_ == 0 ? "" : record(count_ - 1).text(); }

std::string CallLog::list() const {
  std::string lines;
  for (std::int64_t i = std::max<std::int64_t>(count_ - kRecords, 0); i < count_; ++i) {
    lines += fmt::format("{} {}\n", i, record(i).text());
  }
  return lines;
}

std::string CallLog::disagreement() { return compare(list()); }

std::string CallLog::compare(const std::string& mine) {
  const auto by_index = [](const std::string& lines) {
    std::map<std::int64_t, std::string> calls;
    std::istringstream in(lines);
    std::int64_t index = 0;
    for (std::string text; in >> index && in.get() && std::getline(in, text);) calls[index] = text;
    return calls;
  };
  const auto key = [](int rank) { return fmt::format("calls/{}", rank); };
  // A wait that is over its time limit must not wait for the store as well.
  if (store_ == nullptr || store_is_slow_ || asks_store_.exchange(true)) return "";
  const auto started = std::chrono::steady_clock::now();
  std::string found;
  try {
    store_->set(key(rank_), mine);
    const auto my_calls = by_index(mine);
    for (int r = 0; r < size_; ++r) {
      if (r == rank_ || !store_->check({key(r)})) continue;
      const auto bytes = store_->get(key(r));
      for (const auto& [index, theirs] : by_index(std::string(bytes.begin(), bytes.end()))) {
        const auto ours = my_calls.find(index);
        if (!found.empty() || ours == my_calls.end() || ours->second == theirs) continue;
        found = fmt::format("rank {} is in {}, rank {} is in {}; {}", rank_, ours->second, r,
                            theirs, kCallTheSame);
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
    const std::string mine = list();
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
