#include <fmt/format.h>

#include <future>
#include <stdexcept>
#include <thread>
#include <utility>

#include <zero/distributed/store/timed_store.hpp>

namespace zero::dist {

TimedStore::TimedStore(StorePtr base, std::string name, std::chrono::milliseconds timeout)
    : c10d::Store(timeout), base_(std::move(base)), name_(std::move(name)) {}

template <typename Answer>
Answer TimedStore::within(std::chrono::milliseconds limit,
                          std::function<Answer(c10d::Store&)> ask) const {
  std::packaged_task<Answer()> task([base = base_, ask = std::move(ask)] { return ask(*base); });
  std::future<Answer> answer = task.get_future();
  std::thread asking(std::move(task));
  if (answer.wait_for(limit) != std::future_status::ready) {
    asking.detach();
    throw std::runtime_error(
        fmt::format("{} does not answer within {} s", name_, limit.count() / 1000.0));
  }
  asking.join();  // so that the asking thread is not the last to hold the store
  return answer.get();
}

c10::intrusive_ptr<c10d::Store> TimedStore::clone() {
  return c10::make_intrusive<TimedStore>(base_->clone(), name_, getTimeout());
}

void TimedStore::set(const std::string& key, const std::vector<std::uint8_t>& value) {
  within<void>(getTimeout(), [=](c10d::Store& store) { store.set(key, value); });
}

std::vector<std::uint8_t> TimedStore::get(const std::string& key) {
  // get() waits for the key, too.
  return within<std::vector<std::uint8_t>>(2 * getTimeout(),
                                           [=](c10d::Store& store) { return store.get(key); });
}

std::int64_t TimedStore::add(const std::string& key, std::int64_t value) {
  return within<std::int64_t>(getTimeout(),
                              [=](c10d::Store& store) { return store.add(key, value); });
}

bool TimedStore::deleteKey(const std::string& key) {
  return within<bool>(getTimeout(), [=](c10d::Store& store) { return store.deleteKey(key); });
}

bool TimedStore::check(const std::vector<std::string>& keys) {
  return within<bool>(getTimeout(), [=](c10d::Store& store) { return store.check(keys); });
}

std::int64_t TimedStore::getNumKeys() {
  return within<std::int64_t>(getTimeout(), [](c10d::Store& store) { return store.getNumKeys(); });
}

void TimedStore::wait(const std::vector<std::string>& keys,
                      const std::chrono::milliseconds& timeout) {
  within<void>(timeout + getTimeout(), [=](c10d::Store& store) { store.wait(keys, timeout); });
}

}  // namespace zero::dist
