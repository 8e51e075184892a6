#pragma once

#include <cerrno>

namespace zero::base {

/// What a system call returns, made again as often as a signal ends it (EINTR): a program may have
/// a handler without SA_RESTART, and signals that keep coming, such as a profiler's. Below 0 for
/// an error, which is in errno. Not for close(), which closes anyway.
template <typename Call>
auto uninterrupted(const Call& call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

}  // namespace zero::base
