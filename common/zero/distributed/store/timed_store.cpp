#include <fmt/format.h>

#include <algorithm>
#include <future>
#include <thread>
#include <utility>

#include <zero/base/error.hpp>
#include <zero/distributed/store/timed_store.hpp>

namespace zero::dist {

namespace {

// How long a server that runs may need for an answer. Without it, an answer at the time limit, such
// as "the key is not there", would be late.
constexpr std::chrono::seconds kToAnswer{1};

// What `question` returns, if it does so in time.
template <typename Question>
auto within(std::chrono::milliseconds limit, const std::string& name, Question question) {
  std::packaged_task<decltype(question())()> task(std::move(question));
  auto answer = task.get_future();
  std::thread asking(std::move(task));
  if (answer.wait_for(limit + kToAnswer) != std::future_status::ready) {
    asking.detach();
    throw Error(fmt::format(
        "{} does not answer within {} s: its process is stopped, or cannot be reached any more",
        name, limit.count() / 1000.0));
  }
  asking.join();  // so that the asking thread is not the last to hold the store
  return answer.get();
}

}  // namespace

TimedStore::TimedStore(std::string name, std::chrono::milliseconds timeout,
                       const std::function<StorePtr()>& connect)
    : TimedStore(name, timeout, within(timeout, name, connect)) {}

TimedStore::TimedStore(std::string name, std::chrono::milliseconds timeout, StorePtr base)
    : c10d::Store(timeout), name_(std::move(name)), base_(std::move(base)) {}

c10::intrusive_ptr<c10d::Store> TimedStore::clone() {
  return c10::make_intrusive<TimedStore>(name_, getTimeout(), base_->clone());
}

void TimedStore::set(const std::string& key, const std::vector<std::uint8_t>& value) {
  within(getTimeout(), name_, [=, store = base_] { store->set(key, value); });
}

std::vector<std::uint8_t> TimedStore::get(const std::string& key) {
  return within(getTimeout(), name_, [=, store = base_] { return store->get(key); });
}

std::int64_t TimedStore::add(const std::string& key, std::int64_t value) {
  return within(getTimeout(), name_, [=, store = base_] { return store->add(key, value); });
}

bool TimedStore::deleteKey(const std::string& key) {
  return within(getTimeout(), name_, [=, store = base_] { return store->deleteKey(key); });
}

bool TimedStore::check(const std::vector<std::string>& keys) {
  return within(getTimeout(), name_, [=, store = base_] { return store->check(keys); });
}

std::int64_t TimedStore::getNumKeys() {
  return within(getTimeout(), name_, [store = base_] { return store->getNumKeys(); });
}

void TimedStore::wait(const std::vector<std::string>& keys,
                      const std::chrono::milliseconds& timeout) {
  within(std::max(timeout, getTimeout()), name_,
         [=, store = base_] { store->wait(keys, timeout); });
}

}  // namespace zero::dist
