#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <stdlib.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <system_error>
#include <thread>
#include <vector>

#include <zero/base/error.hpp>
#include <zero/distributed/store/folder_store.hpp>

namespace zero::dist {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void cannot(const char* what, const fs::path& path) {
  throw Error(fmt::format("the folder in which ranks meet: {} cannot be {}: {}", path.string(),
                          what, std::strerror(errno)));
}

// /dev/shm may be full of other programs' files: containers often limit it to 64 MiB.
bool has_room(const char* place) {
  struct statvfs about {};
  return ::access(place, W_OK) == 0 && ::statvfs(place, &about) == 0 &&
         about.f_bavail * about.f_frsize >= (std::uint64_t{32} << 20);
}

}  // namespace

// In memory if possible: on a disk, file operations take about ten times as long as everything else
// that the ranks do.
FolderStore::FolderStore() : removes_folder_(true) {
  std::error_code problem;
  const fs::path place = has_room("/dev/shm") ? "/dev/shm" : fs::temp_directory_path(problem);
  if (problem) {
    throw Error(fmt::format("there is no folder for temporary files: {}", problem.message()));
  }
  std::string path = (place / "zero-XXXXXX").string();
  if (::mkdtemp(path.data()) == nullptr) cannot("made", path);
  folder_ = path;
}

FolderStore::~FolderStore() {
  std::error_code ignored;
  if (removes_folder_) fs::remove_all(folder_, ignored);
}

c10::intrusive_ptr<c10d::Store> FolderStore::clone() {
  return c10::make_intrusive<FolderStore>(folder_);
}

// A key may hold any character; a file name may not contain '/'.
fs::path FolderStore::file_of(const std::string& key) const {
  std::string name;
  for (const char c : key) {
    const auto byte = static_cast<unsigned char>(c);
    name += std::isalnum(byte) != 0 ? std::string(1, c) : fmt::format("%{:02x}", byte);
  }
  return folder_ / name;
}

// Writes a complete file under a name that no other process uses, and then gives it its own.
void FolderStore::set(const std::string& key, const std::vector<std::uint8_t>& value) {
  std::string made = (folder_ / "new-XXXXXX").string();
  const int file = ::mkstemp(made.data());
  if (file < 0) cannot("made", made);
  ::close(file);
  std::ofstream out(made, std::ios::binary);
  out << std::string(value.begin(), value.end());
  out.close();
  if (!out) cannot("written", made);
  const fs::path path = file_of(key);
  if (::rename(made.c_str(), path.c_str()) != 0) cannot("named", path);
}

std::vector<std::uint8_t> FolderStore::get(const std::string& key) {
  wait({key});
  std::ifstream file(file_of(key), std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::int64_t FolderStore::add(const std::string& /*key*/, std::int64_t /*value*/) {
  C10_THROW_ERROR(NotImplementedError, "a folder in which ranks meet has no counters");
}

bool FolderStore::deleteKey(const std::string& key) { return fs::remove(file_of(key)); }

bool FolderStore::check(const std::vector<std::string>& keys) {
  return std::ranges::all_of(keys, [this](const auto& key) { return fs::exists(file_of(key)); });
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
