#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <future>

#include <zero/optim/offload/thread_io.hpp>

namespace zero::optim {
namespace {

constexpr int kThreads = 4;

std::string transfer(int file, const Block& block) {
  if (block.write_bytes > 0) {
    const auto size = static_cast<std::size_t>(block.write_bytes);
    const ssize_t done = ::pwrite(file, block.data, size, block.write_to);
    if (done != block.write_bytes)
      return io_error(true, block.write_bytes, done < 0 ? -errno : done);
  }
  if (block.read_bytes > 0) {
    const auto size = static_cast<std::size_t>(block.read_bytes);
    const ssize_t done = ::pread(file, block.data, size, block.read_from);
    if (done != block.read_bytes)
      return io_error(false, block.read_bytes, done < 0 ? -errno : done);
  }
  return "";
}

class ThreadIo final : public BlockIo {
 public:
  explicit ThreadIo(int file) : file_(file) {}
  ~ThreadIo() override { finish(); }

  void start(const std::vector<Block>& blocks) override {
    blocks_ = blocks;
    next_ = 0;
    for (int t = 0; t < kThreads; ++t) {
      threads_.push_back(std::async(std::launch::async, [this] {
        for (std::size_t i = next_++; i < blocks_.size(); i = next_++) {
          if (std::string error = transfer(file_, blocks_[i]); !error.empty()) return error;
        }
        return std::string();
      }));
    }
  }

  std::string finish() override {
    std::string first;
    for (auto& thread : threads_) {
      std::string error = thread.get();
      if (first.empty()) first = std::move(error);
    }
    threads_.clear();
    return first;
  }

 private:
  int file_;
  std::vector<Block> blocks_;
  std::atomic<std::size_t> next_ = 0;
  std::vector<std::future<std::string>> threads_;
};

}  // namespace

std::unique_ptr<BlockIo> make_thread_io(int file) { return std::make_unique<ThreadIo>(file); }

}  // namespace zero::optim
