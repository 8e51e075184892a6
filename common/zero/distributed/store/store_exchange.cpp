#include <fmt/format.h>

#include <string_view>
#include <utility>

#include <zero/base/error.hpp>
#include <zero/distributed/store/store_exchange.hpp>

namespace zero::dist {
namespace {

// A TCP store accepts at most 8 MiB at a time.
constexpr std::size_t kLargestPart = 4 << 20;

}  // namespace

template <typename Wait>
auto StoreExchange::patiently(const std::string& what, const Wait& wait) {
  const auto started = std::chrono::steady_clock::now();
  try {
    return wait();
  } catch (const Error& error) {
    throw Error(fmt::format("waiting {}: {}", what, error.what()));
  } catch (const std::exception& error) {
    if (std::chrono::steady_clock::now() - started < timeout_) {
      throw Error(fmt::format("the store through which ranks meet is gone (waiting {}): {}", what,
                              first_line(error.what())));
    }
    throw Error(fmt::format("no answer within {} s (waiting {}, of {} ranks): {}",
                            timeout_.count() / 1000.0, what, size_, first_line(error.what())));
  }
}

std::vector<std::string> StoreExchange::exchange(const std::string& text) {
  if (size_ == 1) return {text};
  const std::int64_t round = round_++;
  const std::uint64_t call = log_.add({log_.running().public_call, "exchange of texts"});
  const std::vector<std::string> older = std::exchange(mine_, {});
  patiently(fmt::format("to say message {}", round), [&] { put(call, text); });
  std::vector<std::string> all;
  for (int rank = 0; rank < size_; ++rank) all.push_back(take(rank, call, round));
  try {
    // A rank that has sent its message of this round has read those of the round before.
    for (const std::string& key : older) store_->deleteKey(key);
  } catch (const std::exception&) {
    // The exchange itself succeeded; the leftover keys do no harm.
  }
  // The serving rank returns last: the store may go away as soon as it does.
  if (server_ >= 0) leave(round);
  return all;
}

std::string StoreExchange::key_of(std::uint64_t call, int rank, std::size_t part) {
  return fmt::format("exchange/{:x}/{}/{}", call, rank, part);
}

// Each part begins with "+" if another follows, the last with "=".
void StoreExchange::put(std::uint64_t call, const std::string& text) {
  bool more = true;
  for (std::size_t begin = 0; more; begin += kLargestPart) {
    more = text.size() - begin > kLargestPart;
    mine_.push_back(key_of(call, rank_, mine_.size()));
    store_->set(mine_.back(), fmt::format("{}{}", more ? '+' : '=',
                                          std::string_view(text).substr(begin, kLargestPart)));
  }
}

std::string StoreExchange::take(int rank, std::uint64_t call, std::int64_t round) {
  return patiently(fmt::format("for message {} of rank {}", round, log_.world_rank(rank)), [&] {
    std::string text, part = "+";
    for (std::size_t i = 0; part.front() == '+'; ++i) {
      wait_for(key_of(call, rank, i));
      part = store_->get_to_str(key_of(call, rank, i));
      text += part.substr(1);
    }
    return text;
  });
}

void StoreExchange::wait_for(const std::string& key) {
  using Clock = std::chrono::steady_clock;
  const auto deadline = Clock::now() + timeout_;
  while (true) {
    try {
      store_->wait({key}, CallLog::kPatience);
      return;
    } catch (const std::exception& error) {
      if (Clock::now() >= deadline) throw;
      if (const std::string why = log_.disagreement(); !why.empty()) throw Error(why);
      if (dynamic_cast<const Error*>(&error) != nullptr) throw;  // a rank has failed
      if (store_->check({key})) return;                          // throws if the store is gone
    }
  }
}

void StoreExchange::leave(std::int64_t round) {
  const auto left = [](std::int64_t r) { return fmt::format("exchange/{}/left", r); };
  const auto everyone = [](std::int64_t r) { return fmt::format("exchange/{}/everyone", r); };
  patiently(fmt::format("until all ranks have read the messages {}", round), [&] {
    const bool last = store_->add(left(round), 1) == size_;
    if (last && round > 0) {
      store_->deleteKey(left(round - 1));
      store_->deleteKey(everyone(round - 1));
    }
    if (last) store_->set(everyone(round), std::string());
    if (rank_ == server_) store_->wait({everyone(round)}, timeout_);
  });
}

}  // namespace zero::dist
