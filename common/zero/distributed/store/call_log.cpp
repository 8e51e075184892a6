#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include <zero/base/fnv.hpp>
#include <zero/distributed/store/call_log.hpp>

namespace zero::dist {

std::string peer_is_late(int peer, std::chrono::milliseconds timeout) {
  return fmt::format(
      "nothing from rank {} within {} s; it is stopped, far behind, or in another collective", peer,
      timeout.count() / 1000.0);
}

std::string peer_is_gone(int peer) {
  return fmt::format(
      "the connection to rank {} is gone; it ended, or left after an error of its own (ranks must "
      "take the same number of batches: one that has none left passes one of 0 loss_terms)",
      peer);
}

CallLog::~CallLog() {
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
  }
  changed_.notify_all();
  if (watcher_.joinable()) watcher_.join();
}

std::uint64_t CallLog::add(const Record& record) {
  const std::lock_guard lock(mutex_);
  records_[static_cast<std::size_t>(count_ % kRecords)] = record;
  const std::array<std::int64_t, 4> numbers = {count_++, record.elements, record.root,
                                               static_cast<std::int64_t>(record.dtype)};
  std::uint64_t hash = base::fnv1a({reinterpret_cast<const char*>(numbers.data()), sizeof numbers});
  for (const std::string_view text :
       {record.public_call, record.operation, record.purpose, std::string_view(record.unit)}) {
    hash = base::fnv1a(text, hash);
  }
  return hash << kCounted | (static_cast<std::uint64_t>(numbers[0]) & ((1 << kCounted) - 1));
}

std::string CallLog::Record::text() const {
  std::string what(operation);
  if (!purpose.empty()) {
    what = fmt::format("{} of {} {} for {}", operation, elements, c10::toString(dtype), purpose);
  }
  if (root >= 0) what += fmt::format(", root {}", root);
  if (!unit.empty()) what += fmt::format(", unit '{}'", unit);
  return public_call.empty() ? what : fmt::format("{} ({})", public_call, what);
}

CallLog::Calls CallLog::list() const {
  Calls calls;
  for (std::int64_t i = std::max<std::int64_t>(count_ - kRecords, 0); i < count_; ++i) {
    calls[i] = record(i).text();
  }
  return calls;
}

std::string CallLog::disagreement() {
  std::unique_lock lock(mutex_);
  const Calls mine = list();
  lock.unlock();
  return compare(mine);
}

std::string CallLog::compare(const Calls& mine) {
  const auto key = [](int rank) { return fmt::format("calls/{}", rank); };
  if (store_ == nullptr || store_is_slow_) return "";
  // A wait that is over its time limit must not wait for the store as long again.
  const std::unique_lock asking(asks_store_, kPatience);
  if (!asking) store_is_slow_ = true;
  if (store_is_slow_) return "";
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
        const bool gathers = (ours->second + theirs).find(", unit '") != std::string::npos;
        found = fmt::format(
            "rank {} is in {}, rank {} is in {}; all ranks must call the same functions in the "
            "same order{}{}",
            world_rank(rank_), ours->second, world_rank(r), theirs, gathers ? ", and " : "",
            gathers ? kRuleOfUnits : "");
      }
    }
  } catch (const std::exception&) {
    store_is_slow_ = true;
  }
  if (std::chrono::steady_clock::now() - started > kPatience) store_is_slow_ = true;
  return found;
}

CallLog::Waiting::Waiting(CallLog& log, std::function<void()> abort) : log_(log) {
  const std::lock_guard lock(log_.mutex_);
  number_ = ++log_.waits_;
  log_.waiting_[number_] = std::move(abort);
  if (!log_.watcher_.joinable()) log_.watcher_ = std::thread([&log] { log.watch(); });
}

CallLog::Waiting::~Waiting() {
  const std::lock_guard lock(log_.mutex_);
  log_.waiting_.erase(number_);
}

std::string CallLog::Waiting::found() const {
  const std::lock_guard lock(log_.mutex_);
  return log_.found_;
}

void CallLog::watch() {
  std::unique_lock lock(mutex_);
  std::int64_t seen = 0;  // the latest wait at the last look
  while (!changed_.wait_for(lock, kPatience, [this] { return ended_; })) {
    const bool waits_long = !waiting_.empty() && waiting_.begin()->first <= seen;
    seen = waits_;
    if (!waits_long) continue;
    const Calls mine = list();
    lock.unlock();  // the store may be slow
    const std::string found = compare(mine);
    lock.lock();
    if (found.empty()) continue;
    found_ = found;
    for (const auto& [number, abort] : waiting_) {
      try {
        abort();
      } catch (const std::exception&) {
        // A wait that cannot be aborted lasts until its time limit and reports `found_` then.
      }
    }
  }
}

}  // namespace zero::dist
