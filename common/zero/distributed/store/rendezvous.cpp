#include <fmt/format.h>
#include <stdlib.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <future>
#include <iterator>
#include <thread>
#include <utility>

#include <zero/base/error.hpp>
#include <zero/distributed/store/rendezvous.hpp>

namespace zero::dist {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFailed = "zero/failed";
constexpr auto kLookAgain = std::chrono::milliseconds(250);

// A key may hold anything, the name of a file no '/'.
std::string name_of_file(const std::string& key) {
  std::string name;
  for (const char c : key) {
    const auto byte = static_cast<unsigned char>(c);
    name += std::isalnum(byte) != 0 ? std::string(1, c) : fmt::format("%{:02x}", byte);
  }
  return name;
}

std::string contents_of_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Of others it may be full: containers often have one of 64 MiB.
bool has_room(const char* place) {
  struct statvfs about {};
  return ::statvfs(place, &about) == 0 &&
         about.f_bavail * about.f_frsize >= (std::uint64_t{32} << 20);
}

[[noreturn]] void cannot(const char* what, const fs::path& path) {
  throw Error(fmt::format("the folder in which ranks meet: {} cannot be {}: {}", path.string(),
                          what, std::strerror(errno)));
}

}  // namespace

c10::intrusive_ptr<c10d::Store> FolderStore::clone() {
  return c10::make_intrusive<FolderStore>(folder_);
}

fs::path FolderStore::file_of(const std::string& key, std::int64_t version) const {
  const std::string name = name_of_file(key);
  return folder_ / (version == 0 ? name : fmt::format("{}+{}", name, version));
}

// A complete file that nobody else knows yet.
fs::path FolderStore::written(const std::string& text) const {
  std::string path = (folder_ / "new-XXXXXX").string();
  const int file = ::mkstemp(path.data());
  if (file < 0) cannot("made", path);
  ::close(file);
  std::ofstream out(path, std::ios::binary);
  out << text;
  out.close();
  if (!out) cannot("written", path);
  return path;
}

void FolderStore::set(const std::string& key, const std::vector<std::uint8_t>& value) {
  const fs::path made = written(std::string(value.begin(), value.end()));
  const fs::path path = file_of(key);
  if (::rename(made.c_str(), path.c_str()) != 0) cannot("named", path);
}

std::int64_t FolderStore::last_version(const std::string& key) const {
  std::int64_t version = 0;
  while (fs::exists(file_of(key, version + 1))) ++version;
  return version;
}

std::int64_t FolderStore::add(const std::string& key, std::int64_t value) {
  for (std::int64_t version = last_version(key);; ++version) {
    const std::string before = version == 0 ? "0" : contents_of_file(file_of(key, version));
    const std::int64_t sum = std::stoll(before) + value;
    const fs::path made = written(std::to_string(sum));
    // One of those who try gets the name; the others come after it.
    const int linked = ::link(made.c_str(), file_of(key, version + 1).c_str());
    const int code = errno;
    ::unlink(made.c_str());
    if (linked == 0) return sum;
    errno = code;
    if (code != EEXIST) cannot("linked", made);
  }
}

std::vector<std::uint8_t> FolderStore::get(const std::string& key) {
  wait({key});
  const fs::path path = file_of(key);
  const std::string text =
      contents_of_file(fs::exists(path) ? path : file_of(key, last_version(key)));
  return {text.begin(), text.end()};
}

bool FolderStore::deleteKey(const std::string& key) { return fs::remove(file_of(key)); }

bool FolderStore::check(const std::vector<std::string>& keys) {
  return std::all_of(keys.begin(), keys.end(), [this](const std::string& key) {
    return fs::exists(file_of(key)) || fs::exists(file_of(key, 1));
  });
}

std::int64_t FolderStore::getNumKeys() {
  return std::distance(fs::directory_iterator(folder_), fs::directory_iterator());
}

void FolderStore::wait(const std::vector<std::string>& keys,
                       const std::chrono::milliseconds& timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  auto pause = std::chrono::microseconds(100);
  while (!check(keys)) {
    if (std::chrono::steady_clock::now() >= deadline) {
      throw std::runtime_error(
          fmt::format("wait timeout after {} ms for {}", timeout.count(), keys.front()));
    }
    std::this_thread::sleep_for(pause);
    pause = std::min<std::chrono::microseconds>(2 * pause, std::chrono::milliseconds(5));
  }
}

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
  asking.join();  // it is not to be the last that holds the store
  return answer.get();
}

c10::intrusive_ptr<c10d::Store> TimedStore::clone() {
  return c10::make_intrusive<TimedStore>(base_->clone(), name_, getTimeout());
}

void TimedStore::set(const std::string& key, const std::vector<std::uint8_t>& value) {
  within<void>(getTimeout(), [=](c10d::Store& store) { store.set(key, value); });
}

std::vector<std::uint8_t> TimedStore::get(const std::string& key) {
  // It waits for the key by itself.
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

// In memory where the system has a place for that: on a disk the file system takes longer than all
// that the ranks do, some ten times as long.
Rendezvous::Rendezvous() {
  std::string path = "/dev/shm/zero-XXXXXX";
  if (has_room("/dev/shm") && ::mkdtemp(path.data()) != nullptr) {
    folder_ = path;
    return;
  }
  std::error_code problem;
  const fs::path place = fs::temp_directory_path(problem);
  if (problem) throw Error(fmt::format("no folder for temporary files: {}", problem.message()));
  path = (place / "zero-XXXXXX").string();
  if (::mkdtemp(path.data()) == nullptr) cannot("made", path);
  folder_ = path;
}

Rendezvous::~Rendezvous() {
  std::error_code ignored;
  fs::remove_all(folder_, ignored);
}

void Rendezvous::say_failed(const std::string& how) const {
  try {
    FolderStore(folder_).set(kFailed, how);
  } catch (const Error&) {
    // They find out when their time is up, and the launch says what failed.
  }
}

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
      // Not 0, which some stores take for no limit.
      c10d::PrefixStore::wait(keys, std::clamp<milliseconds>(left, milliseconds(1), kLookAgain));
      return;
    } catch (const std::exception&) {
      // Late, or a store that took its time to say no.
      if (left <= kLookAgain || Clock::now() >= deadline) throw;
      if (check(keys)) return;  // throws where the store is gone
    }
    if (!base_->check({kFailed})) continue;
    const std::vector<std::uint8_t> how = base_->get(kFailed);
    throw Error(std::string(how.begin(), how.end()));
  }
}

}  // namespace zero::dist
