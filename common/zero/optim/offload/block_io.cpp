#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include <zero/optim/offload/block_io.hpp>

namespace zero::optim {
namespace {

constexpr int kThreads = 4;

// "" if all bytes were moved.
std::string problem(const char* what, std::int64_t bytes, ssize_t moved) {
  if (moved == bytes) return "";
  if (moved < 0) return std::generic_category().message(errno);
  return fmt::format("{} of {} bytes were {}", moved, bytes, what);
}

std::string transfer(int file, const Block& b) {
  const auto size = [](std::int64_t bytes) { return static_cast<std::size_t>(bytes); };
  std::string wrong;
  if (b.write_bytes > 0) {
    wrong =
        problem("written", b.write_bytes, ::pwrite(file, b.data, size(b.write_bytes), b.write_to));
  }
  if (b.read_bytes > 0 && wrong.empty()) {
    wrong = problem("there", b.read_bytes, ::pread(file, b.data, size(b.read_bytes), b.read_from));
  }
  return wrong;
}

}  // namespace

void BlockIo::start(std::vector<Block> blocks) {
  blocks_ = std::move(blocks);
  next_ = 0;
  // Without a launch policy: if the system has no thread left, finish() moves the blocks.
  for (int t = 0; t < kThreads; ++t) threads_.push_back(std::async([this] { return move_some(); }));
}

std::string BlockIo::move_some() {
  std::string wrong;
  for (std::size_t i = next_++; i < blocks_.size() && wrong.empty(); i = next_++) {
    wrong = transfer(file_, blocks_[i]);
  }
  return wrong;
}

std::string BlockIo::finish() {
  std::string first;
  for (auto& thread : std::exchange(threads_, {})) {  // if one throws, the others end first
    std::string wrong = thread.get();
    if (first.empty()) first = std::move(wrong);
  }
  return first;
}

}  // namespace zero::optim
