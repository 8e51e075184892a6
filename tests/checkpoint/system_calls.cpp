// Functions of the C library, in its place, which ask before_system_call and then do what they
// should.
#include "system_calls.hpp"

#include <fcntl.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

namespace zero::testing {

std::function<int(SystemCall, const std::string&)> before_system_call;

namespace {

// Whether the call may be made.
bool ask(SystemCall call, const std::string& path) {
  const int error = before_system_call ? before_system_call(call, path) : 0;
  if (error != 0) errno = error;
  return error == 0;
}

std::string path_of(int file) {
  char path[400] = {};
  const std::string link = "/proc/self/fd/" + std::to_string(file);
  return ::readlink(link.c_str(), path, sizeof(path) - 1) > 0 ? path : "";
}

}  // namespace
}  // namespace zero::testing

using zero::testing::SystemCall;

extern "C" int fallocate(int file, int mode, off_t offset, off_t size) {
  if (!zero::testing::ask(SystemCall::kFallocate, zero::testing::path_of(file))) return -1;
  return static_cast<int>(::syscall(SYS_fallocate, file, mode, offset, size));
}

extern "C" int fsync(int file) {
  if (!zero::testing::ask(SystemCall::kFsync, zero::testing::path_of(file))) return -1;
  return static_cast<int>(::syscall(SYS_fsync, file));
}

extern "C" int rename(const char* from, const char* to) noexcept {
  if (!zero::testing::ask(SystemCall::kRename, to)) return -1;
  return static_cast<int>(::syscall(SYS_renameat, AT_FDCWD, from, AT_FDCWD, to));
}

extern "C" int remove(const char* path) noexcept {
  if (!zero::testing::ask(SystemCall::kRemove, path)) return -1;
  const long removed = ::syscall(SYS_unlinkat, AT_FDCWD, path, 0);
  if (removed == 0 || errno != EISDIR) return static_cast<int>(removed);
  return static_cast<int>(::syscall(SYS_unlinkat, AT_FDCWD, path, AT_REMOVEDIR));
}
