#include <fmt/format.h>
#include <stdlib.h>
#include <sys/statvfs.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <system_error>
#include <vector>

#include <zero/base/error.hpp>
#include <zero/distributed/store/folder_store.hpp>
#include <zero/distributed/store/rendezvous.hpp>

namespace zero::dist {
namespace {

namespace fs = std::filesystem;

// /dev/shm may be full of other programs' files: containers often limit it to 64 MiB.
bool has_room(const char* place) {
  struct statvfs about {};
  return ::statvfs(place, &about) == 0 &&
         about.f_bavail * about.f_frsize >= (std::uint64_t{32} << 20);
}

}  // namespace

// In memory if possible: on a disk, file operations take about ten times as long as everything else
// that the ranks do.
Rendezvous::Rendezvous() {
  std::error_code problem;
  const fs::path temporary = fs::temp_directory_path(problem);
  std::vector<fs::path> places;
  if (has_room("/dev/shm")) places.emplace_back("/dev/shm");
  if (!problem) places.push_back(temporary);
  if (places.empty()) {
    throw Error(fmt::format("there is no folder for temporary files: {}", problem.message()));
  }
  for (const fs::path& place : places) {
    std::string path = (place / "zero-XXXXXX").string();
    if (::mkdtemp(path.data()) == nullptr) continue;
    folder_ = path;
    return;
  }
  throw Error(fmt::format("a folder in which ranks meet cannot be made in {}: {}",
                          places.back().string(), std::strerror(errno)));
}

Rendezvous::~Rendezvous() {
  std::error_code ignored;
  fs::remove_all(folder_, ignored);
}

void Rendezvous::say_failed(const std::string& how) const {
  try {
    FolderStore(folder_).set(kFailedKey, how);
  } catch (const Error&) {
    // The ranks time out instead, and the launcher still reports the failure.
  }
}

}  // namespace zero::dist
