#include <ATen/ceil_div.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>

#include <zero/base/error.hpp>
#include <zero/memory/shared_arena.hpp>

namespace zero::memory {
namespace {

// Blocks begin at a page; huge pages hold several, or parts of one.
constexpr std::int64_t kPage = 4096, kHugePage = 2 << 20;
// MADV_COLLAPSE, which older headers do not have.
constexpr int kCollapse = 25;

[[noreturn]] void fail_arena(const char* step) {
  throw Error(fmt::format("memory cannot be shared ({}): {}", step, std::strerror(errno)));
}

// Never destroyed: blocks may be freed when the process ends.
SharedArena* the_arena = nullptr;

}  // namespace

std::int64_t SharedArena::default_size() {
  constexpr std::int64_t kMost = std::int64_t{128} << 30;
  return std::min(static_cast<std::int64_t>(::sysconf(_SC_PHYS_PAGES)) * ::sysconf(_SC_PAGESIZE),
                  kMost);
}

SharedArena::SharedArena(std::int64_t size)
    : SharedArena("memfd_create", ::memfd_create("zero-arena", MFD_CLOEXEC), size,
                  /*writes=*/true) {
  if (::ftruncate(file_, static_cast<off_t>(size_)) != 0) fail_arena("ftruncate");
}

SharedArena::SharedArena(int pid, int file, std::int64_t size, bool writes)
    : SharedArena("open",
                  ::open(fmt::format("/proc/{}/fd/{}", pid, file).c_str(),
                         (writes ? O_RDWR : O_RDONLY) | O_CLOEXEC),
                  size, writes) {}

SharedArena::SharedArena(const char* step, int file, std::int64_t size, bool writes)
    : file_(file), process_(::getpid()), size_(at::round_up(size, kHugePage)) {
  if (file_ < 0) fail_arena(step);
  // Huge pages need an address that is a multiple of theirs: room for one more, cut at both ends.
  const auto length = static_cast<std::size_t>(size_);
  void* const room = ::mmap(nullptr, length + kHugePage, PROT_NONE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, /*fd=*/-1, 0);
  void* mapped = room;
  if (room != MAP_FAILED) {
    auto* const first = static_cast<std::byte*>(room);
    const auto skipped =
        static_cast<std::size_t>(-reinterpret_cast<std::intptr_t>(room) & (kHugePage - 1));
    if (skipped > 0) ::munmap(first, skipped);
    if (skipped < kHugePage) ::munmap(first + skipped + length, kHugePage - skipped);
    mapped = ::mmap(first + skipped, length, PROT_READ | (writes ? PROT_WRITE : 0),
                    MAP_SHARED | MAP_NORESERVE | MAP_FIXED, file_, 0);
  }
  if (mapped == MAP_FAILED) {
    ::close(file_);
    fail_arena("mmap");
  }
  memory_ = static_cast<std::byte*>(mapped);
  present_.resize(length / kHugePage);
}

SharedArena::~SharedArena() {
  ::munmap(memory_, static_cast<std::size_t>(size_));
  ::close(file_);
}

// In the first gap that is large enough.
std::optional<std::int64_t> SharedArena::allocate(std::int64_t bytes) {
  const std::int64_t needed = at::round_up(std::max<std::int64_t>(bytes, 1), kPage);
  const std::lock_guard lock(mutex_);
  std::int64_t offset = 0;
  auto next = used_.begin();
  for (; next != used_.end() && next->first - offset < needed; ++next) {
    offset = next->first + next->second;
  }
  if (next == used_.end() && size_ - offset < needed) return std::nullopt;
  used_.emplace_hint(next, offset, needed);
  most_held_ = std::max(most_held_, held_ += needed);
  make_present(offset, offset + needed);
  limit_unused();
  return offset;
}

bool SharedArena::is_mine() const { return process_ == ::getpid(); }

void SharedArena::free(std::int64_t offset) {
  if (!is_mine()) return;
  const std::lock_guard lock(mutex_);
  const auto block = used_.find(offset), next = std::next(block);
  // The huge pages on which no other block lies.
  std::int64_t from = offset / kHugePage * kHugePage;
  std::int64_t to = at::round_up(offset + block->second, kHugePage);
  if (block != used_.begin()) {
    const auto& before = *std::prev(block);
    if (from < before.first + before.second) from += kHugePage;
  }
  if (next != used_.end() && to > next->first) to -= kHugePage;
  held_ -= block->second;
  used_.erase(block);
  for (std::int64_t at = from; at < to; at += kHugePage) unused_.insert(at);
  limit_unused();
}

// Caller holds the mutex. Collapsing needs a page table, which the first byte makes, and no more:
// it fills the rest with zeros. If the system cannot do it, the pages are small and come when
// touched.
void SharedArena::make_present(std::int64_t begin, std::int64_t end) {
  const std::int64_t last = at::round_up(end, kHugePage);
  std::int64_t first = begin / kHugePage * kHugePage;  // of those without memory
  for (std::int64_t at = first; at <= last; at += kHugePage) {
    if (at < last && !present_[static_cast<std::size_t>(at / kHugePage)]) {
      present_[static_cast<std::size_t>(at / kHugePage)] = true;
      *static_cast<volatile std::byte*>(memory_ + at) = std::byte{0};
      continue;
    }
    if (first < at) ::madvise(memory_ + first, static_cast<std::size_t>(at - first), kCollapse);
    unused_.erase(at);
    first = at + kHugePage;
  }
}

// Caller holds the mutex. What is given back costs more to fault in again than to copy into it. The
// last go first, because allocate() looks for the first gap; neighbours go together.
void SharedArena::limit_unused() {
  const auto excess = [this] {
    return static_cast<std::int64_t>(unused_.size()) * kHugePage - (most_held_ - held_);
  };
  while (excess() > 0) {
    auto first = std::prev(unused_.end());
    const std::int64_t end = *first + kHugePage;
    while (end - *first < excess() && unused_.contains(*first - kHugePage)) --first;
    const std::int64_t begin = *first;
    // If the file system cannot punch holes, the memory is merely kept.
    if (::fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, begin, end - begin) != 0)
      return;
    unused_.erase(first, unused_.end());
    std::fill(present_.begin() + begin / kHugePage, present_.begin() + end / kHugePage, false);
  }
}

void SharedArena::forget(std::int64_t offset, std::int64_t bytes) const {
  const std::int64_t begin = offset / kPage * kPage;
  ::madvise(memory_ + begin, static_cast<std::size_t>(offset + bytes - begin), MADV_DONTNEED);
}

SharedArena& share_large_blocks() {
  if (the_arena == nullptr || !the_arena->is_mine()) {
    auto* const arena = new SharedArena;
    // A child would write into its parent's tensors.
    ::madvise(arena->at(0), static_cast<std::size_t>(SharedArena::default_size()), MADV_DONTFORK);
    the_arena = arena;
    take_large_blocks_from(arena);
  }
  return *the_arena;
}

}  // namespace zero::memory
