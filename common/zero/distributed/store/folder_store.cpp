#include <fmt/format.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <thread>

#include <zero/base/error.hpp>
#include <zero/distributed/store/folder_store.hpp>

namespace zero::dist {
namespace {

namespace fs = std::filesystem;

// A key may hold any character; a file name may not contain '/'.
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

// Writes a complete file under a name that no other process uses.
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
    // Only one of the ranks that try can take the name; the others retry with the next one.
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
    if (check({kFailedKey})) throw Error(get_to_str(kFailedKey));
    if (std::chrono::steady_clock::now() >= deadline) {
      throw std::runtime_error(
          fmt::format("wait timeout after {} ms for {}", timeout.count(), keys.front()));
    }
    std::this_thread::sleep_for(pause);
    pause = std::min<std::chrono::microseconds>(2 * pause, std::chrono::milliseconds(5));
  }
}

}  // namespace zero::dist
