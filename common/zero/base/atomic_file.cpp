#include <fcntl.h>
#include <fmt/format.h>
#include <stdlib.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <system_error>
#include <utility>

#include <zero/base/atomic_file.hpp>
#include <zero/base/error.hpp>

namespace zero::base {
namespace {

namespace fs = std::filesystem;

// The process id separates programs that write the same file, the count separates writers in one.
fs::path temporary_name(const fs::path& path) {
  static std::atomic<int> count = 0;
  fs::path temporary = path;
  temporary.replace_filename(
      fmt::format(".{}.{}.{}", path.filename().string(), ::getpid(), count.fetch_add(1)));
  return temporary;
}

std::string reason(int code) { return std::generic_category().message(code); }

[[noreturn]] void refuse_folder(const fs::path& path) {
  throw Error(fmt::format("cannot write '{}': it names a folder, name a file", path.string()));
}

// Refuses an existing path that is no ordinary file: root could replace /dev/null by one. A
// symbolic link stays, and its target is written.
fs::path target_of(const fs::path& path) {
  std::error_code ignored;
  const fs::file_status status = fs::status(path, ignored);
  if (fs::exists(status) && !fs::is_regular_file(status) && !fs::is_directory(status)) {
    throw Error(fmt::format("cannot write '{}': it is no ordinary file; name one", path.string()));
  }
  return fs::is_symlink(path, ignored) ? fs::weakly_canonical(path) : path;
}

}  // namespace

AtomicFile::AtomicFile(const fs::path& path) : path_(path), temporary_(temporary_name(path)) {
  std::error_code ignored;
  if (!path.has_filename() || fs::is_directory(path, ignored)) refuse_folder(path);
  file_ = static_cast<int>(TEMP_FAILURE_RETRY(
      ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666)));
  if (file_ < 0) fail("cannot be created", errno);
}

AtomicFile::AtomicFile(const fs::path& path, std::int64_t size) : AtomicFile(path) {
  reserve(size);  // the destructor runs if this throws
}

AtomicFile::~AtomicFile() {
  if (file_ >= 0) ::close(file_);
  if (!published_) ::unlink(temporary_.c_str());
}

void AtomicFile::fail(const char* step, int code) const {
  throw Error(
      fmt::format("cannot write '{}': it {}: {}; a folder that can be written to and has "
                  "space is needed",
                  path_.string(), step, reason(code)));
}

void AtomicFile::reserve(std::int64_t size) {
  if (size == 0) return;
  if (TEMP_FAILURE_RETRY(::fallocate(file_, /*mode=*/0, /*offset=*/0, size)) == 0) return;
  // Some file systems cannot reserve; on them a full disk shows only when bytes are written.
  if (errno != EOPNOTSUPP && errno != ENOSYS) {
    fail(fmt::format("needs {} bytes, which cannot be reserved", size).c_str(), errno);
  }
  if (TEMP_FAILURE_RETRY(::ftruncate(file_, size)) != 0) {
    fail("cannot be made long enough", errno);
  }
}

void AtomicFile::write(const void* data, std::int64_t size, std::int64_t offset) {
  const char* next = static_cast<const char*>(data);
  while (size > 0) {
    const auto written =
        TEMP_FAILURE_RETRY(::pwrite(file_, next, static_cast<std::size_t>(size), offset));
    if (written < 0) fail("cannot be written", errno);
    next += written;
    offset += written;
    size -= written;
  }
}

void AtomicFile::complete() {
  if (TEMP_FAILURE_RETRY(::fsync(file_)) != 0) {
    fail("cannot be brought to the disk", errno);
  }
  const int closed = ::close(std::exchange(file_, -1));
  if (closed != 0 && errno != EINTR) fail("cannot be closed", errno);
}

void AtomicFile::publish() {
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail("cannot be given its name", errno);
  published_ = true;
  sync_folder(path_.has_parent_path() ? path_.parent_path() : ".");
}

void sync_folder(const fs::path& folder) {
  const int file = static_cast<int>(
      TEMP_FAILURE_RETRY(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)));
  const int code = file >= 0 && TEMP_FAILURE_RETRY(::fsync(file)) == 0 ? 0 : errno;
  if (file >= 0) ::close(file);
  // Not every file system can sync a folder; nothing more can be done there.
  if (code == 0 || code == EINVAL) return;
  throw Error(fmt::format("the folder '{}' cannot be brought to the disk: {}", folder.string(),
                          reason(code)));
}

void write_file(const fs::path& name, std::string_view contents) {
  const fs::path path = target_of(name);
  std::error_code error;
  if (path.has_parent_path()) fs::create_directories(path.parent_path(), error);
  if (error) {
    throw Error(fmt::format("cannot create the folder '{}': {}; name one that can be written to",
                            path.parent_path().string(), error.message()));
  }
  const auto size = static_cast<std::int64_t>(contents.size());
  AtomicFile file(path, size);
  file.write(contents.data(), size, /*offset=*/0);
  file.complete();
  file.publish();
}

void check_writable(const fs::path& name) {
  const fs::path path = target_of(name);
  std::error_code ignored;
  if (!path.has_filename() || fs::is_directory(path, ignored)) refuse_folder(path);
  fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  std::error_code error;
  while (!fs::exists(folder, error)) {
    if (error && error != std::errc::no_such_file_or_directory) break;
    folder = folder.has_parent_path() ? folder.parent_path() : fs::path(".");
  }
  // Only creating a file gives a sure answer: permission bits can be overruled either way.
  std::string probe = (folder / ".zero-XXXXXX").string();
  const int file = ::mkstemp(probe.data());
  if (file < 0) {
    throw Error(
        fmt::format("cannot write '{}': {}: {}; name a file in a folder that can be written to",
                    path.string(), folder.string(), reason(errno)));
  }
  ::close(file);
  fs::remove(probe, ignored);
}

}  // namespace zero::base
