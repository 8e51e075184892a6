#include <fmt/format.h>

#include <system_error>

#include <zero/optim/offload/block_io.hpp>

namespace zero::optim {

std::string io_error(bool writes, std::int64_t bytes, std::int64_t done) {
  if (done == bytes) return "";
  if (done < 0) return std::generic_category().message(static_cast<int>(-done));
  return fmt::format("{} of {} bytes were {}", done, bytes, writes ? "written" : "there");
}

}  // namespace zero::optim
