#pragma once

#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#include <cstddef>
#include <functional>
#include <utility>

namespace zero::testing {

/// A call of pread() or pwrite().
struct Transfer {
  bool writes;
  const void* data;
  std::size_t bytes;
  off_t at;
  std::function<ssize_t()> as_asked;  ///< does what the system would do
};

/// Takes the place of the system in every pread() and pwrite() of this program, on the thread that
/// calls it, while this lives. One at a time, made and destroyed while nothing is on its way.
class Disk {
 public:
  using Does = std::function<ssize_t(const Transfer&)>;
  explicit Disk(Does does) { does_ = std::move(does); }
  ~Disk() { does_ = nullptr; }
  Disk(const Disk&) = delete;
  Disk& operator=(const Disk&) = delete;

  static ssize_t transfer(const Transfer& transfer) {
    return does_ ? does_(transfer) : transfer.as_asked();
  }

 private:
  inline static Does does_;
};

}  // namespace zero::testing

// In place of those of the C library, in each program that has this file.
extern "C" {
__attribute__((used)) inline ssize_t pread(int file, void* data, size_t bytes, off_t at) {
  return zero::testing::Disk::transfer({false, data, bytes, at, [=]() -> ssize_t {
                                          return ::syscall(SYS_pread64, file, data, bytes, at);
                                        }});
}
__attribute__((used)) inline ssize_t pwrite(int file, const void* data, size_t bytes, off_t at) {
  return zero::testing::Disk::transfer({true, data, bytes, at, [=]() -> ssize_t {
                                          return ::syscall(SYS_pwrite64, file, data, bytes, at);
                                        }});
}
}
