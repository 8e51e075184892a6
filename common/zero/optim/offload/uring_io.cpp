#include <zero/optim/offload/uring_io.hpp>

#ifndef ZERO_HAS_URING

std::unique_ptr<zero::optim::BlockIo> zero::optim::make_uring_io(int) { return nullptr; }

#else

#include <c10/util/Exception.h>
#include <liburing.h>

#include <cerrno>

namespace zero::optim {
namespace {

class UringIo final : public BlockIo {
 public:
  UringIo(int file, const io_uring& ring) : file_(file), ring_(ring) {}
  ~UringIo() override {
    finish();
    io_uring_queue_exit(&ring_);
  }

  void start(const std::vector<Block>& blocks) override {
    for (const Block& b : blocks) {
      if (b.write_bytes > 0) {
        io_uring_sqe* const write = io_uring_get_sqe(&ring_);
        io_uring_prep_write(write, file_, b.data, static_cast<unsigned>(b.write_bytes),
                            static_cast<std::uint64_t>(b.write_to));
        // The block's read begins after it, and not at all if it fails.
        if (b.read_bytes > 0) io_uring_sqe_set_flags(write, IOSQE_IO_LINK);
        note(write, /*writes=*/true, b.write_bytes);
      }
      if (b.read_bytes > 0) {
        io_uring_sqe* const read = io_uring_get_sqe(&ring_);
        io_uring_prep_read(read, file_, b.data, static_cast<unsigned>(b.read_bytes),
                           static_cast<std::uint64_t>(b.read_from));
        note(read, /*writes=*/false, b.read_bytes);
      }
    }
    for (int left = pending_; left > 0;) {
      const int submitted = io_uring_submit(&ring_);
      if (submitted < 0 && submitted != -EINTR && submitted != -EAGAIN) {
        pending_ -= left;  // those never end
        finish();
        io_uring_queue_exit(&ring_);  // forgets them: the next start() must not submit them
        TORCH_CHECK(io_uring_queue_init(2 * kMostBlocks, &ring_, 0) == 0, "io_uring_queue_init");
        TORCH_CHECK(false, "io_uring_submit: ", io_error(true, 1, submitted));
      }
      left -= submitted > 0 ? submitted : 0;
    }
  }

  std::string finish() override {
    std::string first;
    while (pending_ > 0) {
      io_uring_cqe* done = nullptr;
      const int waited = io_uring_wait_cqe(&ring_, &done);
      if (waited == -EINTR) continue;
      TORCH_CHECK(waited == 0, "io_uring_wait_cqe: ", io_error(false, 1, waited));
      // Of a failed write and its read, the write comes first.
      const std::uint64_t expected = io_uring_cqe_get_data64(done);
      if (first.empty()) {
        first = io_error((expected & 1) != 0, static_cast<std::int64_t>(expected >> 1), done->res);
      }
      io_uring_cqe_seen(&ring_, done);
      --pending_;
    }
    return first;
  }

 private:
  void note(io_uring_sqe* entry, bool writes, std::int64_t bytes) {
    io_uring_sqe_set_data64(entry, static_cast<std::uint64_t>(bytes) << 1 | (writes ? 1 : 0));
    ++pending_;
  }

  int file_;
  io_uring ring_;
  int pending_ = 0;
};

}  // namespace

std::unique_ptr<BlockIo> make_uring_io(int file) {
  io_uring ring{};
  // A write and a read for each block.
  if (io_uring_queue_init(2 * BlockIo::kMostBlocks, &ring, 0) != 0) return nullptr;
  return std::make_unique<UringIo>(file, ring);
}

}  // namespace zero::optim

#endif
