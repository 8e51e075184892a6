#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <zero/base/error.hpp>
#include <zero/distributed/host/shared_arena.hpp>

namespace zero::dist {
namespace {

// Data begins at a page, so that its pages can be freed.
constexpr std::int64_t kPage = 4096;
// Memory kept for later data: faulting it in again costs more than copying into it.
constexpr std::int64_t kKeptBytes = 64 << 20;

[[noreturn]] void fail_arena(const char* step) {
  throw Error(fmt::format("memory cannot be shared ({}): {}", step, std::strerror(errno)));
}

}  // namespace

std::int64_t bytes_of_this_machine() {
  return static_cast<std::int64_t>(::sysconf(_SC_PHYS_PAGES)) * ::sysconf(_SC_PAGESIZE);
}

SharedArena::SharedArena(std::int64_t size)
    : file_(::memfd_create("zero-arena", MFD_CLOEXEC)), size_(size) {
  if (file_ < 0) fail_arena("memfd_create");
  if (::ftruncate(file_, static_cast<off_t>(size)) != 0) {
    ::close(file_);
    fail_arena("ftruncate");
  }
  map();
}

SharedArena::SharedArena(int pid, int file, std::int64_t size)
    : file_(::open(fmt::format("/proc/{}/fd/{}", pid, file).c_str(), O_RDWR | O_CLOEXEC)),
      size_(size) {
  if (file_ < 0) fail_arena("open");
  map();
}

void SharedArena::map() {
  void* const mapped = ::mmap(nullptr, static_cast<std::size_t>(size_), PROT_READ | PROT_WRITE,
                              MAP_SHARED | MAP_NORESERVE, file_, 0);
  if (mapped == MAP_FAILED) {
    ::close(file_);
    fail_arena("mmap");
  }
  memory_ = static_cast<std::byte*>(mapped);
}

SharedArena::~SharedArena() {
  ::munmap(memory_, static_cast<std::size_t>(size_));
  ::close(file_);
}

std::int64_t SharedArena::put(const void* data, std::int64_t bytes) {
  const std::int64_t needed = (std::max<std::int64_t>(bytes, 1) + kPage - 1) / kPage * kPage;
  std::int64_t offset = 0;  // the first gap that is large enough
  for (const auto& [begin, length] : used_) {
    if (begin - offset >= needed) break;
    offset = begin + length;
  }
  if (offset + needed > size_) {
    throw Error(fmt::format("{} bytes do not fit among the {} that are on their way to other ranks",
                            bytes, offset));
  }
  used_[offset] = needed;
  touched_ = std::max(touched_, offset + needed);
  if (bytes > 0) std::memcpy(at(offset), data, static_cast<std::size_t>(bytes));
  return offset;
}

void SharedArena::free(std::int64_t offset) {
  used_.erase(offset);
  give_back();
}

void SharedArena::give_back() {
  const std::int64_t end = used_.empty() ? 0 : used_.rbegin()->first + used_.rbegin()->second;
  const std::int64_t keep = std::max(end, kKeptBytes);
  if (touched_ <= keep) return;
  // If the file system cannot punch holes, the memory is merely kept.
  ::fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, keep, touched_ - keep);
  touched_ = keep;
}

}  // namespace zero::dist
