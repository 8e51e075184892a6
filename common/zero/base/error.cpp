#include <c10/util/Exception.h>

#include <zero/base/error.hpp>

namespace zero {

std::string message_of(const std::exception& error) {
  const auto* of_libtorch = dynamic_cast<const c10::Error*>(&error);
  return of_libtorch == nullptr ? error.what() : of_libtorch->what_without_backtrace();
}

}  // namespace zero
